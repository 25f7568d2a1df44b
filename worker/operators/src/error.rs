//! The error of an operator that cannot process a chunk.

/// An error that concerns a whole chunk: the chunk does not have the columns that the operator was built for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// Returns a message.
    pub message: String,
}

impl OperatorError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl From<arrow::error::ArrowError> for OperatorError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::new(format!("an Arrow kernel failed: {error}"))
    }
}
