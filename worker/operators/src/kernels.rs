//! The registry of kernels: how a worker runs each operator. Each kernel is in its own file, with [`KernelDefinition`] for the
//! operator's parameters.

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

/// Makes [`kernel_definition`] from the operators that have a kernel and those that the engine runs.
macro_rules! kernels {
    (kernels: $($kind:ident),+; engine: $($engines:ident),+;) => {
        /// How a worker runs the operator; `None` for an operator of the engine, such as `batch` and `cache`.
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

/// How a worker runs an operator with these parameters.
pub(crate) trait KernelDefinition {
    /// Builds the kernel. The error is one sentence without its place.
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String>;

    /// The column that the kernel writes to new tensor storage, where the column is a tensor after it.
    fn written_column(&self) -> Option<&str> {
        None
    }

    /// The column whose encoded images the kernel decodes, and the least height and width to which it brings a whole image.
    fn decoded_column(&self) -> Option<(&str, Size)> {
        None
    }

    /// Time that the engine lets pass for each row without occupying a thread.
    fn wait_per_row(&self) -> Option<Duration> {
        None
    }
}

/// What a kernel is built from, beside the operator's parameters.
pub(crate) struct KernelContext<'a> {
    /// Index among the operators that have a kernel: the key of the kernel's output buffers.
    pub(crate) index: usize,
    /// The key of its random draws.
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
        self.input.get(column).ok_or_else(|| format!("there is not a column `{column}`"))
    }

    /// Element type and shape of a column that is a tensor after the operator.
    pub(crate) fn output_tensor(&self, column: &str) -> Result<(ScalarType, &[u32]), String> {
        match self.output.get(column) {
            Some(ColumnType::Tensor { scalar, shape }) => Ok((*scalar, shape)),
            _ => Err(format!("column `{column}` does not become a tensor")),
        }
    }
}

/// Leaves a chunk as it is: the engine does the work of the operator.
#[derive(Debug)]
pub(crate) struct EngineKernel;

impl OperatorKernel for EngineKernel {
    fn apply(&self, _chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        Ok(())
    }
}
