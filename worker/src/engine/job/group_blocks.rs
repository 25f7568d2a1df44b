//! The blocks that the rows of one group belong to.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::manifest::{Block, Manifest, ShardIndex, ShardRef};
use feedline_data::order::RowRef;

use super::segments::SegmentRows;
use crate::engine::blocks::BlockKey;

/// Finds the block of each row of a group.
#[derive(Debug, Clone)]
pub(crate) enum GroupBlocks {
    /// The blocks of the dataset.
    Manifest(Arc<Manifest>),
    /// The blocks of the segment that contains the group, in an unbounded job.
    Segment(Arc<SegmentRows>),
}

impl GroupBlocks {
    /// Returns the shard and the block of a row.
    pub(crate) fn block(&self, row: &RowRef) -> (&ShardRef, &Block) {
        match self {
            Self::Manifest(manifest) => {
                let shard = &manifest.shards[row.shard as usize];
                (&shard.object, &shard.index.blocks[row.block as usize])
            }
            Self::Segment(segment) => segment.block(row),
        }
    }

    /// Returns the index of a row's shard.
    pub(crate) fn index(&self, row: &RowRef) -> Option<&ShardIndex> {
        match self {
            Self::Manifest(manifest) => Some(&manifest.shards[row.shard as usize].index),
            Self::Segment(_) => None,
        }
    }

    /// Returns the key of a row's block in the block cache. Blocks of an unbounded job are identified by their first offset.
    pub(crate) fn key(&self, job: JobId, row: &RowRef) -> BlockKey {
        let block = match self {
            Self::Manifest(_) => u64::from(row.block),
            Self::Segment(segment) => segment.block(row).1.offset,
        };
        BlockKey { job, shard: row.shard, block }
    }
}
