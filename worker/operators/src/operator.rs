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
    /// Transforms `chunk` in place. New tensors are written to the kernel's buffer in `buffers`, if there is one.
    ///
    /// A row that cannot be processed is added to [`Chunk::failures`], and its value is replaced by a placeholder. Other rows
    /// are not affected.
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError>;
}

/// A column of encoded images that an operator decodes and resizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// The column.
    pub column: String,
    /// The minimum height and width of a whole image after the operator. Caches do not store the pixels of much larger
    /// images.
    pub size: Size,
}

/// A Python function that a separate process calls for the rows of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionCall {
    /// The function.
    pub function: Function,
    /// Whether the function selects rows instead of computing columns.
    pub is_filter: bool,
    /// The index among the built operators, which is the key of the output buffers.
    pub index: usize,
    /// The key of the rows' seeds.
    pub draws: u32,
    /// The pipeline's seed.
    pub seed: u64,
    /// The columns that the function receives.
    pub inputs: Vec<Field>,
}

impl FunctionCall {
    /// The columns that the function returns. A filter returns one boolean column without a name.
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
    /// The unique name. The second operator of a kind has the suffix `#2`.
    pub name: String,
    /// The columns after the operator.
    pub schema: Schema,
    /// Maximum number of concurrent executions on one worker.
    pub parallelism: Option<u32>,
    /// The time per row that the engine waits without occupying a thread.
    pub wait_per_row: Option<Duration>,
    /// The Python function of the operator, which the engine calls. The kernel of such an operator does nothing.
    pub function: Option<Arc<FunctionCall>>,
    /// The column for which the kernel writes a new tensor to [`OutputBuffers`].
    pub writes: Option<String>,
    /// The column of images that the kernel decodes.
    pub decodes: Option<Decoding>,
    /// Whether the operator may remove rows.
    pub changes_rows: bool,
    /// The kernel.
    pub operator: Arc<dyn OperatorKernel>,
}

impl BuiltOperator {
    /// Whether the operator writes a new tensor for this column to [`OutputBuffers`].
    pub fn is_writer_of(&self, column: &str) -> bool {
        let makes = |call: &Arc<FunctionCall>| call.function.outputs.contains_key(column);
        self.writes.as_deref() == Some(column) || self.function.as_ref().is_some_and(makes)
    }
}

impl std::fmt::Debug for BuiltOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltOperator")
            .field("name", &self.name)
            .field("parallelism", &self.parallelism)
            .field("wait_per_row", &self.wait_per_row)
            .field("writes", &self.writes)
            .field("changes_rows", &self.changes_rows)
            .finish_non_exhaustive()
    }
}
