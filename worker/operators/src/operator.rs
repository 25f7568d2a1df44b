//! What an operator is to the engine.

use std::sync::Arc;
use std::time::Duration;

use feedline_core::pipeline::Size;
use feedline_core::schema::Schema;

use crate::{Chunk, Slots};

/// Transforms the rows of a chunk.
pub trait Operator: Send + Sync {
    /// Transforms `chunk` in place, writing new tensor storage into the place `slots` has for it.
    ///
    /// A row that cannot be processed becomes one of [`Chunk::failures`] and a placeholder; the others go on.
    fn apply(&self, chunk: &mut Chunk, slots: &mut Slots) -> Result<(), OperatorError>;
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
    /// The column for which it makes new tensor storage, or takes it from [`Slots`].
    pub writes: Option<String>,
    /// What it decodes, if it decodes images.
    pub decodes: Option<Decoding>,
    /// Whether rows may leave.
    pub changes_rows: bool,
    /// What transforms the rows.
    pub operator: Arc<dyn Operator>,
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
