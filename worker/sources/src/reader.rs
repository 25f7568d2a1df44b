//! The interface of the source formats.

use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use feedline_data::schema::Schema;

use crate::error::SourceError;
use crate::object::Object;
use crate::select::Selection;

/// Reads the shards of one dataset. A reader may cache data that all blocks of a shard need, such as a footer.
#[async_trait]
pub(crate) trait FormatReader: Send + Sync {
    /// Indexes a shard: its rows, blocks and columns.
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError>;

    /// Reads rows of a block.
    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError>;
}

/// A request to read rows of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRead<'a> {
    /// The listed shard.
    pub shard: &'a ShardRef,
    /// A block of the shard.
    pub block: &'a Block,
    /// The requested columns, which may be a subset of the dataset's columns.
    pub schema: &'a Schema,
    /// The requested rows of the block in ascending order, or `None` for all rows. Must be `None` if `block.row_bytes` is empty.
    pub rows: Option<&'a [u32]>,
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

/// The decoded rows of a block.
pub(crate) struct DecodedBlock {
    pub(crate) batch: RecordBatch,
    pub(crate) failures: Vec<RowFailure>,
    /// Memory that the batch uses, including buffers that its columns reference.
    pub(crate) held_bytes: usize,
}
