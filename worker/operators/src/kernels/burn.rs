//! `burn`: uses a fixed CPU time per row, for benchmarks.

use std::sync::Arc;

use feedline_data::pipeline::Burn;
use rustix::time::{ClockId, clock_gettime};

use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for Burn {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(BurnOperator { cpu_us: self.cpu_us }))
    }
}

/// Spins until the current thread has used the CPU time.
#[derive(Debug)]
pub(crate) struct BurnOperator {
    pub(crate) cpu_us: u64,
}

impl OperatorKernel for BurnOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let target_ns = u128::from(self.cpu_us) * 1_000 * chunk.rows() as u128;
        let start_ns = thread_cpu_ns();
        while thread_cpu_ns() - start_ns < target_ns {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn thread_cpu_ns() -> u128 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burn_uses_the_configured_time_per_row() {
        let mut chunk = Chunk::new(Vec::new(), vec![0, 1, 2, 3], vec![0; 4]);
        let before_ns = thread_cpu_ns();
        BurnOperator { cpu_us: 500 }.apply(&mut chunk, &mut OutputBuffers::new()).unwrap();
        assert!(thread_cpu_ns() - before_ns >= 2_000_000);
    }
}
