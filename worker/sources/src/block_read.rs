//! A request to read rows of a block, which readers of formats and decoders of compressed shards receive.

use feedline_data::compression::ShardCompression;
use feedline_data::manifest::{Block, ListPages, ShardIndex, ShardRef};
use feedline_data::schema::Schema;

/// A request to read rows of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRead<'a> {
    /// The listed shard.
    pub shard: &'a ShardRef,
    /// A block of the shard.
    pub block: &'a Block,
    /// The index of the shard; `None` for a range of a Kafka partition.
    pub index: Option<&'a ShardIndex>,
    /// The requested columns, which may be a subset of the dataset's columns.
    pub schema: &'a Schema,
    /// The requested rows of the block in ascending order, or `None` for all rows. Must be `None` if `block.row_bytes` is empty.
    pub rows: Option<&'a [u32]>,
}

impl<'a> BlockRead<'a> {
    /// The compression of the shard; `None` if it is not compressed.
    pub fn compression(&self) -> Option<&'a ShardCompression> {
        self.index?.compression.as_ref()
    }

    /// The pages of lists in a Parquet file that its own metadata does not describe.
    pub(crate) fn list_pages(&self) -> &'a [ListPages] {
        self.index.map_or(&[], |index| &index.list_pages)
    }
}
