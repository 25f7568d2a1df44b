//! The interface of a source format: what its reader receives and returns.

use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use feedline_data::schema::Schema;

use crate::error::SourceError;
use crate::object::Object;
use crate::select::Selection;

/// Reads the shards of one dataset. It may cache what it needs for every block of a shard, such as a footer.
#[async_trait]
pub(crate) trait FormatReader: Send + Sync {
    /// Finds a shard's rows, blocks and columns.
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError>;

    /// Reads rows of a block.
    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError>;
}

/// What to read of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRead<'a> {
    /// The shard, as it was listed.
    pub shard: &'a ShardRef,
    /// One of its blocks.
    pub block: &'a Block,
    /// The columns wanted, possibly fewer than the dataset has.
    pub schema: &'a Schema,
    /// Ascending rows inside the block; only where `block.row_bytes` is filled. `None`: all rows.
    pub rows: Option<&'a [u32]>,
}

/// A row that could not be read. The batch holds a placeholder in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// Index in the batch.
    pub row: u32,
    /// Byte offset in the shard.
    pub offset: u64,
    /// What is wrong, in one clause.
    pub reason: String,
}

/// The rows of a block, as a format decodes them.
pub(crate) struct DecodedBlock {
    pub(crate) batch: RecordBatch,
    pub(crate) failures: Vec<RowFailure>,
    pub(crate) held_bytes: usize,
}
