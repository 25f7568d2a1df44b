//! The registry of kernels. The file of a kernel implements [`KernelDefinition`] for the parameters of the operator.

mod burn;
mod cast;
mod columns;
pub(crate) mod conjuncts;
pub(crate) mod filter;
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
use feedline_data::pipeline::{FilterFunction, MapFunction, OperatorKind, Size};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Defines [`kernel_definition`] from two lists: the operators with a kernel, and the operators that the engine runs itself.
macro_rules! kernels {
    (kernels: $($kind:ident),+; engine: $($engine_kind:ident),+;) => {
        /// Returns the kernel definition of an operator. `None` for operators that the engine runs itself, such as `batch`.
        pub(crate) fn kernel_definition(kind: &OperatorKind) -> Option<&dyn KernelDefinition> {
            match kind {
                $(OperatorKind::$kind(parameters) => Some(parameters),)+
                $(OperatorKind::$engine_kind(_) => None,)+
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
    engine: Cache, Batch, BucketByLength, Pack, SampleNeighbors, Repeat;
}

/// Builds the kernel of an operator from the operator's parameters.
pub(crate) trait KernelDefinition {
    /// Builds the kernel. The error message does not contain the operator. By default, the kernel does nothing, because the engine
    /// runs the operator itself.
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(EngineKernel))
    }

    /// The column that the kernel writes to an output buffer if the column becomes a tensor.
    fn written_column(&self) -> Option<&str> {
        self.decoded_column().map(|(column, _)| column)
    }

    /// The column that the kernel reads as [`Column::Tensor`](crate::Column::Tensor) if the column contains tensors.
    fn tensor_column(&self) -> Option<&str> {
        self.written_column()
    }

    /// The column of images that the kernel decodes, and the minimum height and width that a whole image has after the operator.
    fn decoded_column(&self) -> Option<(&str, Size)> {
        None
    }

    /// Time per row that the engine waits without using a thread.
    fn wait_per_row(&self) -> Option<Duration> {
        None
    }
}

/// The inputs for building a kernel, in addition to the operator's parameters.
pub(crate) struct KernelContext<'a> {
    /// The index of the operator among the operators with a kernel, which is the key of the output buffers.
    pub(crate) index: usize,
    /// The operator's number, which is part of the seed of its random draws.
    pub(crate) draw_key: u32,
    /// The pipeline's seed.
    pub(crate) seed: u64,
    /// The columns before the operator.
    pub(crate) input: &'a Schema,
    /// The columns after the operator.
    pub(crate) output: &'a Schema,
    /// Reads a file that the operator requires.
    pub(crate) load: &'a dyn Fn(&str) -> Result<Bytes, String>,
}

impl KernelContext<'_> {
    /// Returns the type of a column before the operator.
    pub(crate) fn input_type(&self, column: &str) -> Result<&ColumnType, String> {
        self.input.get(column).ok_or_else(|| format!("column `{column}` does not exist"))
    }

    /// Returns the element type and the shape that a column has after the operator. Fails if the column is not a tensor.
    pub(crate) fn output_tensor(&self, column: &str) -> Result<(ScalarType, &[u32]), String> {
        match self.output.get(column) {
            Some(ColumnType::Tensor { scalar, shape }) => Ok((*scalar, shape)),
            _ => Err(format!("column `{column}` is not a tensor after the operator")),
        }
    }
}

// The engine calls these functions in separate processes.
impl KernelDefinition for MapFunction {}
impl KernelDefinition for FilterFunction {}

/// A kernel that does nothing, for operators that the engine runs itself.
#[derive(Debug)]
struct EngineKernel;

impl OperatorKernel for EngineKernel {
    fn apply(&self, _chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        Ok(())
    }
}
