//! A request to read rows of a block, which readers of formats and decoders of compressed shards receive.

use feedline_data::compression::ShardCompression;
use feedline_data::manifest::{Block, ShardRef};
use feedline_data::schema::Schema;

/// A request to read rows of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRead<'a> {
    /// The listed shard.
    pub shard: &'a ShardRef,
    /// A block of the shard.
    pub block: &'a Block,
    /// The compression of the shard, from its index.
    pub compression: Option<&'a ShardCompression>,
    /// The requested columns, which may be a subset of the dataset's columns.
    pub schema: &'a Schema,
    /// The requested rows of the block in ascending order, or `None` for all rows. Must be `None` if `block.row_bytes` is empty.
    pub rows: Option<&'a [u32]>,
}
