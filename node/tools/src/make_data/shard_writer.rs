//! The interface of the writers of all file formats.

use anyhow::Result;
use arrow::array::RecordBatch;

/// Encodes rows into one file.
pub(super) trait ShardWriter {
    /// Appends the rows of a batch.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
    /// Writes the end of the file, and flushes all data.
    fn finish(self: Box<Self>) -> Result<()>;
}
