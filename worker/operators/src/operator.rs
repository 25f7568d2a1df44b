//! What an operator is to the engine.

use std::sync::Arc;
use std::time::Duration;

use feedline_data::pipeline::{Function, Size};
use feedline_data::schema::{ColumnType, Field, ScalarType, Schema};

use crate::{Chunk, OutputBuffers};

/// Transforms the rows of a chunk.
pub trait OperatorKernel: Send + Sync {
    /// Transforms `chunk` in place, writing new tensor storage into the place `slots` has for it.
    ///
    /// A row that cannot be processed becomes one of [`Chunk::failures`] and a placeholder; the others go on.
    fn apply(&self, chunk: &mut Chunk, slots: &mut OutputBuffers) -> Result<(), OperatorError>;
}

/// Why a whole chunk could not be processed: the chunk does not have the columns the operator was built for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// The sentence.
    pub message: String,
}

impl OperatorError {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// A column of encoded images that an operator decodes and brings to one size, or a part of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// The column.
    pub column: String,
    /// The least height and width to which it brings a whole image: pixels of images that are much larger are not kept.
    pub size: Size,
}

/// A Python function that is called for rows, in processes beside the worker.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionCall {
    /// The function.
    pub function: Function,
    /// Whether it chooses among rows instead of making columns.
    pub is_filter: bool,
    /// Place among the operators that are built: what its slots are keyed by.
    pub index: usize,
    /// What its rows' seeds are keyed by.
    pub draws: u32,
    /// The pipeline's seed.
    pub seed: u64,
    /// The columns that it is given.
    pub inputs: Vec<Field>,
}

impl FunctionCall {
    /// The columns that it makes; of a filter whether to keep each row.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, ColumnType)> {
        let kept = self.is_filter.then_some(("", ColumnType::Scalar(ScalarType::Bool)));
        let made = self.function.outputs.iter().map(|(name, output)| (name.as_str(), output.column_type()));
        kept.into_iter().chain(made)
    }
}

/// An operator with what the engine needs to know to run it.
#[derive(Clone)]
pub struct BuiltOperator {
    /// Its kind, such as `random_resized_crop`; the second one of a kind has `#2` behind it.
    pub name: String,
    /// The columns after it.
    pub schema: Schema,
    /// Upper limit of concurrent executions on one worker.
    pub parallelism: Option<u32>,
    /// Time the engine lets pass per row without occupying a thread.
    pub wait_per_row: Option<Duration>,
    /// The Python function that it is: the engine has it called, and what transforms the rows here does nothing.
    pub function: Option<Arc<FunctionCall>>,
    /// The column for which it makes new tensor storage, or takes it from [`OutputBuffers`].
    pub writes: Option<String>,
    /// What it decodes, if it decodes images.
    pub decodes: Option<Decoding>,
    /// Whether rows may leave.
    pub changes_rows: bool,
    /// What transforms the rows.
    pub operator: Arc<dyn OperatorKernel>,
}

impl BuiltOperator {
    /// Whether it makes new tensor storage for this column, or takes it from [`OutputBuffers`].
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
