//! `wait`: waits for a fixed time per row without using CPU time, for benchmarks. The engine waits.

use std::time::Duration;

use feedline_data::pipeline::Wait;

use super::KernelDefinition;

impl KernelDefinition for Wait {
    fn wait_per_row(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.ms))
    }
}
