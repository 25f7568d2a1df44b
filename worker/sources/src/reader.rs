//! The interface of the source formats.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};

use crate::error::SourceError;
use crate::list;
use crate::object::Object;
use crate::select::Selection;
use crate::stores::ScopedStores;

pub use crate::block_read::BlockRead;

/// How a sample of a shard is indexed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SampleMethod {
    /// Like a whole shard, because the index of a shard does not need its rows.
    #[default]
    Whole,
    /// From the first rows, because the index of a shard needs all of its rows.
    FirstRows,
    /// The same, for rows that end with a line break.
    FirstLines,
}

/// The properties of a shard's format on which samples depend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampleTraits {
    pub(crate) method: SampleMethod,
    /// Whether a block with fewer rows is a valid block, and reading it reads less.
    pub(crate) has_divisible_blocks: bool,
}

impl SampleTraits {
    /// The properties of a format whose index needs all rows.
    pub(crate) fn of_rows(method: SampleMethod) -> Self {
        Self { method, ..Self::default() }
    }
}

/// The memory for a block in encoded and in decoded form, if the format does not know more.
pub(crate) fn default_peak_bytes(read: &BlockRead<'_>) -> u64 {
    read.block.bytes.saturating_mul(2)
}

/// Reads the shards of one dataset. A reader may cache data that all blocks of a shard need, such as a footer.
#[async_trait]
pub(crate) trait FormatReader: Send + Sync {
    /// Lists the shards of the source URLs. Formats whose own index names the shards replace this method.
    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        list::list(reads, urls).await
    }

    /// Whether each URL can be listed alone, with the same result.
    fn lists_each_url(&self) -> bool {
        true
    }

    /// The properties on which samples of a shard depend.
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::default()
    }

    /// Indexes a shard for a sample. Unlike an index, it does not verify the hashes of whole shards.
    async fn index_sample(
        &self,
        object: &Arc<Object>,
        selection: &Selection,
    ) -> Result<ShardIndex, SourceError> {
        self.index(object, selection).await
    }

    /// Indexes a shard: its rows, blocks and columns.
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError>;

    /// Returns the maximum memory for reading all rows of a block, in encoded and in decoded form.
    async fn peak_bytes(
        &self,
        _object: &Arc<Object>,
        read: &BlockRead<'_>,
        _selection: &Selection,
    ) -> Result<u64, SourceError> {
        Ok(default_peak_bytes(read))
    }

    /// Reads the encoded bytes of a block and keeps them in the object, if only they say how much memory the block needs. Returns the
    /// maximum memory for reading the block. `None` if [`Self::peak_bytes`] has returned it.
    async fn fetch(&self, _object: &Arc<Object>, _read: &BlockRead<'_>) -> Result<Option<u64>, SourceError> {
        Ok(None)
    }

    /// Reads rows of a block.
    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError>;
}

/// A row that could not be read. The batch contains a placeholder for the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// The index of the row in the batch.
    pub row: u32,
    /// The byte offset of the row in the shard.
    pub offset: u64,
    /// The error message.
    pub reason: String,
}

/// Rows that were read from a block.
#[derive(Debug, Clone)]
pub struct BlockRows {
    /// The requested columns of the requested rows, in row order.
    pub batch: RecordBatch,
    /// The rows that could not be read. The batch contains a placeholder for each of them.
    pub failures: Vec<RowFailure>,
    /// Indexes in the batch, in ascending order, of rows without a record in the source. They are not delivered, and do not count as
    /// failed. The batch contains a placeholder for each of them.
    pub absent: Vec<u32>,
    /// Rows whose records were deleted or lost. A job that needs one of them fails. They are also in `absent`.
    pub lost: Vec<LostRows>,
    /// The newest timestamp of the records, in milliseconds since 1970; `None` if the source has no timestamps.
    pub newest_ms: Option<u64>,
    /// Memory that the batch uses, including buffers that its columns reference.
    pub held_bytes: usize,
    /// Number of bytes that were read from the store.
    pub store_bytes: u64,
    /// Number of requests to the store.
    pub store_requests: u32,
    /// Total duration of all requests, from the request to the last byte.
    pub store_wait: Duration,
    /// The part of `store_bytes` that was read with blocking calls.
    pub blocking_bytes: u64,
}

/// Rows of a block of a topic whose records were deleted or lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRows {
    /// The rows.
    pub rows: Range<u32>,
    /// The offset of the first row of the block.
    pub block_start: u64,
    /// Why the records no longer exist, as a part of a sentence.
    pub reason: String,
}

impl BlockRows {
    /// Checks that none of these rows is lost. `wanted` is in ascending order.
    ///
    /// # Errors
    /// Returns an error that names the offsets from the first of these rows on.
    pub fn check_lost(&self, shard: &ShardRef, wanted: &[u32]) -> Result<(), SourceError> {
        for LostRows { rows, block_start, reason } in &self.lost {
            let first = wanted.get(wanted.partition_point(|row| *row < rows.start)).copied();
            if let Some(first) = first.filter(|first| *first < rows.end) {
                let (from, to) = (block_start + u64::from(first), block_start + u64::from(rows.end) - 1);
                let reason = format!(
                    "the records from offset {from} to {to} no longer exist, because {reason}; set `on_gap: skip` to continue without \
                     them, or open a new job without a position"
                );
                return Err(SourceError::Store { url: shard.url.clone(), reason, retryable: false });
            }
        }
        Ok(())
    }
}

/// The decoded rows of a block.
pub(crate) struct DecodedBlock {
    pub(crate) batch: RecordBatch,
    pub(crate) failures: Vec<RowFailure>,
    /// Memory that the batch uses, including buffers that its columns reference.
    pub(crate) held_bytes: usize,
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;

    use super::*;

    #[test]
    fn only_a_job_that_needs_lost_rows_fails() {
        let lost =
            LostRows { rows: 2..5, block_start: 100, reason: "the log starts at offset 105".to_owned() };
        let rows = BlockRows {
            batch: RecordBatch::new_empty(Arc::new(Schema::empty())),
            failures: Vec::new(),
            absent: vec![2, 3, 4],
            lost: vec![lost],
            newest_ms: None,
            held_bytes: 0,
            store_bytes: 0,
            store_requests: 1,
            store_wait: Duration::ZERO,
            blocking_bytes: 0,
        };
        let shard = ShardRef { url: "kafka://a:1/t/0".to_owned(), ..ShardRef::default() };
        for wanted in [&[][..], &[0, 1], &[5, 9]] {
            assert!(rows.check_lost(&shard, wanted).is_ok(), "{wanted:?}");
        }
        for (wanted, from) in [(&[2][..], 102), (&[0, 4, 7], 104)] {
            let error = rows.check_lost(&shard, wanted).expect_err("a row is lost").to_string();
            let expected = format!(
                "the records from offset {from} to 104 no longer exist, because the log starts at offset 105"
            );
            assert!(error.contains(&expected), "{error}");
        }
    }
}
