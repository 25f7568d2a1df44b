//! What a data set's rows are, whatever file format they end in.

use std::ops::Range;

use anyhow::Result;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

/// The rows of a data set in order, generated or read on demand.
pub(super) trait Rows {
    /// Their columns.
    fn schema(&self) -> SchemaRef;
    /// Rows in all, at least 1.
    fn count(&self) -> u64;
    /// Most rows to ask for at once, so that memory stays bounded.
    fn batch_rows(&self) -> u64;
    /// The rows of a range, which follows the range asked for before and holds at most [`Self::batch_rows`].
    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch>;
}
