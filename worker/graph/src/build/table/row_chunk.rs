//! A chunk of rows of a table, as Arrow arrays.

use std::sync::Arc;

use arrow::array::ArrayRef;

use crate::error::GraphError;

/// Consecutive rows of the chosen columns.
#[derive(Debug, Clone)]
pub(in crate::build) struct RowChunk {
    /// The position of the first row in the table.
    pub(in crate::build) first_row: u64,
    /// The number of rows.
    pub(in crate::build) rows: usize,
    /// The columns in the order of the choice.
    pub(in crate::build) columns: Vec<ArrayRef>,
    /// The path of the file.
    pub(in crate::build) file: Arc<str>,
    /// The position of the first row in the file.
    pub(in crate::build) file_row: u64,
}

impl RowChunk {
    /// An error in a row of the chunk.
    pub(in crate::build) fn invalid_row(&self, row: usize, reason: impl std::fmt::Display) -> GraphError {
        GraphError::file(self.file.as_ref(), format!("row {}: {reason}", self.file_row + row as u64))
    }

    /// An error in all rows of the chunk.
    pub(in crate::build) fn invalid_file(&self, reason: impl Into<String>) -> GraphError {
        GraphError::file(self.file.as_ref(), reason)
    }
}
