//! `wait`: waits for a fixed time per row without using CPU time, for benchmarks. The engine waits.

use std::sync::Arc;
use std::time::Duration;

use feedline_data::pipeline::Wait;

use super::{EngineKernel, KernelContext, KernelDefinition};
use crate::OperatorKernel;

impl KernelDefinition for Wait {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(EngineKernel))
    }

    fn wait_per_row(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.ms))
    }
}
