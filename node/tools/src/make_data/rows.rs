//! The interface between the sources of rows and the writers of files.

use std::ops::Range;

use anyhow::Result;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

/// The rows of a dataset in order, generated or read on demand.
pub(super) trait RowSource {
    /// Returns the columns.
    fn schema(&self) -> SchemaRef;
    /// Returns the number of rows, at least 1.
    fn count(&self) -> u64;
    /// Returns the maximum number of rows per call of [`Self::read`]. It bounds the memory use.
    fn batch_rows(&self) -> u64;
    /// Returns the rows of a range of at most [`Self::batch_rows`] rows, which begins where the previous range ended.
    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch>;
}
