//! The interface between operators and the engine.

use std::sync::Arc;
use std::time::Duration;

use feedline_data::pipeline::{Function, Size};
use feedline_data::schema::{ColumnType, Field, ScalarType, Schema};

use crate::chunk::Chunk;
use crate::error::OperatorError;
use crate::output_buffers::OutputBuffers;

/// Transforms the rows of a chunk.
pub trait OperatorKernel: Send + Sync {
    /// Transforms `chunk` in place. Writes new tensors to the kernel's buffer in `buffers`, or allocates memory if there is
    /// no buffer.
    ///
    /// Adds rows that cannot be processed to [`Chunk::failures`], and replaces their values with placeholders.
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError>;
}

/// A column of encoded images that an operator decodes and resizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// The name of the column.
    pub column: String,
    /// The minimum height and width that a whole image has after the operator. Caches do not store the pixels of much larger images.
    pub size: Size,
}

/// A Python function that a separate process calls for the rows of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionCall {
    /// The function.
    pub function: Function,
    /// Whether the function selects rows instead of computing columns.
    pub is_filter: bool,
    /// The index of the operator among the built operators, which is the key of the output buffers.
    pub index: usize,
    /// The operator's number, which is part of the seed of each row.
    pub draw_key: u32,
    /// The pipeline's seed.
    pub seed: u64,
    /// The columns that the function receives.
    pub inputs: Vec<Field>,
}

impl FunctionCall {
    /// The names and types of the columns that the function returns. A filter returns one boolean column without a name.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, ColumnType)> {
        let selection = self.is_filter.then_some(("", ColumnType::Scalar(ScalarType::Bool)));
        let columns =
            self.function.outputs.iter().map(|(name, output)| (name.as_str(), output.column_type()));
        selection.into_iter().chain(columns)
    }
}

/// An operator with the properties that the engine needs to run it.
#[derive(Clone)]
pub struct BuiltOperator {
    /// The name, which is unique in the pipeline. The second operator of a kind has the suffix `#2`.
    pub name: String,
    /// The columns after the operator.
    pub schema: Schema,
    /// Maximum number of concurrent executions on one worker.
    pub parallelism: Option<u32>,
    /// Time per row that the engine waits without using a thread.
    pub wait_per_row: Option<Duration>,
    /// The Python function of the operator, which the engine calls. The kernel of an operator with a function does nothing.
    pub function: Option<Arc<FunctionCall>>,
    /// The column that the kernel writes to [`OutputBuffers`] as a new tensor.
    pub written_column: Option<String>,
    /// The column of images that the kernel decodes.
    pub decoding: Option<Decoding>,
    /// Whether the operator may remove rows.
    pub changes_rows: bool,
    /// The kernel of the operator.
    pub operator: Arc<dyn OperatorKernel>,
}

impl BuiltOperator {
    /// Whether the operator writes a new tensor for this column to [`OutputBuffers`].
    pub fn is_writer_of(&self, column: &str) -> bool {
        let is_output = |call: &Arc<FunctionCall>| call.function.outputs.contains_key(column);
        self.written_column.as_deref() == Some(column) || self.function.as_ref().is_some_and(is_output)
    }
}

impl std::fmt::Debug for BuiltOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltOperator")
            .field("name", &self.name)
            .field("parallelism", &self.parallelism)
            .field("wait_per_row", &self.wait_per_row)
            .field("writes", &self.written_column)
            .field("changes_rows", &self.changes_rows)
            .finish_non_exhaustive()
    }
}
