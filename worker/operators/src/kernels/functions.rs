//! `map` and `filter_function`: call Python functions. The engine calls the functions in separate processes.

use std::sync::Arc;

use feedline_data::pipeline::{FilterFunction, MapFunction};

use super::{EngineKernel, KernelContext, KernelDefinition};
use crate::OperatorKernel;

impl KernelDefinition for MapFunction {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(EngineKernel))
    }
}

impl KernelDefinition for FilterFunction {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(EngineKernel))
    }
}
