//! The operator `wait`: passes time without CPU, to measure the engine with.

use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Returns at once: the engine waits.
#[derive(Debug)]
pub(crate) struct WaitOperator;

impl OperatorKernel for WaitOperator {
    fn apply(&self, _chunk: &mut Chunk, _slots: &mut OutputBuffers) -> Result<(), OperatorError> {
        Ok(())
    }
}
