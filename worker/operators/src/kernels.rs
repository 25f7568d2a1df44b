//! The registry of kernels. Each kernel has its own file, which implements [`KernelDefinition`] for the operator's parameters.

mod burn;
mod cast;
mod columns;
pub(crate) mod filter;
mod functions;
mod image_edit;
mod lists;
mod normalize;
pub(crate) mod pictures;
mod random_erasing;
mod random_grayscale;
mod random_horizontal_flip;
mod recode_jpeg;
mod tokenize;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feedline_data::pipeline::{OperatorKind, Size};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Defines [`kernel_definition`] from the list of operators with a kernel and the list of operators of the engine.
macro_rules! kernels {
    (kernels: $($kind:ident),+; engine: $($engines:ident),+;) => {
        /// The kernel definition of an operator; `None` for an operator of the engine, such as `batch` and `cache`.
        pub(crate) fn kernel_definition(kind: &OperatorKind) -> Option<&dyn KernelDefinition> {
            match kind {
                $(OperatorKind::$kind(parameters) => Some(parameters),)+
                $(OperatorKind::$engines(_) => None,)+
            }
        }
    };
}

kernels! {
    kernels:
        DecodeImage,
        Resize,
        CenterCrop,
        RandomResizedCrop,
        RandomHorizontalFlip,
        RandomGrayscale,
        RandomErasing,
        Normalize,
        Cast,
        Select,
        Rename,
        Filter,
        Tokenize,
        Truncate,
        Pad,
        RecodeJpeg,
        Burn,
        Wait,
        Map,
        FilterFunction;
    engine: Cache, Batch, BucketByLength, Pack, Repeat;
}

/// Builds the kernel of an operator.
pub(crate) trait KernelDefinition {
    /// Builds the kernel. An error is one sentence that does not name the operator.
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String>;

    /// The column for which the kernel writes a new tensor, if the column is a tensor after the operator.
    fn written_column(&self) -> Option<&str> {
        None
    }

    /// The column of encoded images that the kernel decodes, and the minimum height and width of a whole image after it.
    fn decoded_column(&self) -> Option<(&str, Size)> {
        None
    }

    /// The time per row that the engine waits without occupying a thread.
    fn wait_per_row(&self) -> Option<Duration> {
        None
    }
}

/// The inputs of building a kernel, in addition to the operator's parameters.
pub(crate) struct KernelContext<'a> {
    /// The index among the operators with a kernel, which is the key of the output buffers.
    pub(crate) index: usize,
    /// The key of the operator's random draws.
    pub(crate) draws: u32,
    /// The pipeline's seed.
    pub(crate) seed: u64,
    /// The columns before the operator.
    pub(crate) input: &'a Schema,
    /// The columns after the operator.
    pub(crate) output: &'a Schema,
    /// Reads the file that the operator names.
    pub(crate) load: &'a dyn Fn(&str) -> Result<Bytes, String>,
}

impl KernelContext<'_> {
    /// The named column before the operator.
    pub(crate) fn input_type(&self, column: &str) -> Result<&ColumnType, String> {
        self.input.get(column).ok_or_else(|| format!("column `{column}` does not exist"))
    }

    /// The element type and shape of a column that is a tensor after the operator.
    pub(crate) fn output_tensor(&self, column: &str) -> Result<(ScalarType, &[u32]), String> {
        match self.output.get(column) {
            Some(ColumnType::Tensor { scalar, shape }) => Ok((*scalar, shape)),
            _ => Err(format!("column `{column}` does not become a tensor")),
        }
    }
}

/// A kernel that does nothing, for operators that the engine runs itself.
#[derive(Debug)]
pub(crate) struct EngineKernel;

impl OperatorKernel for EngineKernel {
    fn apply(&self, _chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        Ok(())
    }
}
