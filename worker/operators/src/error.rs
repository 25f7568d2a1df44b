//! The error that an operator returns if it cannot process a chunk.

/// An error that affects a whole chunk, such as a missing column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// The error message.
    pub message: String,
}

impl OperatorError {
    /// Creates an error.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl From<arrow::error::ArrowError> for OperatorError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::new(format!("an Arrow kernel failed: {error}"))
    }
}
