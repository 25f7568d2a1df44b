//! Manifests and what belongs to them. Blocks are packed: a list for each of their fields.

use feedline_data::manifest::{Block, DatasetSummary, Defect, Manifest, Shard, ShardIndex, ShardRef};
use prost::Message;

use super::{WireError, all, mirror, read, read_all, read_optional};
use crate::wire;

/// The present version of a saved manifest.
const MANIFEST_VERSION: u32 = 1;

mirror!(ShardRef, wire::ShardRef, { url, size_bytes, version, part });
mirror!(Defect, wire::Defect, { offset, reason });

/// The bytes of a manifest, for a file or for sending in chunks.
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let shards = manifest.shards.iter().map(|shard| wire::Shard {
        object: Some(shard.object.clone().into()),
        index: Some((&shard.index).into()),
    });
    let message = wire::Manifest {
        version: MANIFEST_VERSION,
        schema: Some(manifest.schema.clone().into()),
        shards: shards.collect(),
    };
    message.encode_to_vec()
}

/// Reads [`encode_manifest`]'s bytes.
///
/// # Errors
/// One sentence, for bytes that are damaged or of another release.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    let message = wire::Manifest::decode(bytes).map_err(|error| {
        format!("the index is damaged: {error}; build it again with `feedline index --rebuild`")
    })?;
    if message.version != MANIFEST_VERSION {
        return Err(format!(
            "the index has version {}, this release reads version {MANIFEST_VERSION}; build it again with `feedline index --rebuild`",
            message.version
        ));
    }
    read_manifest(message).map_err(|error| {
        format!("the index is damaged: {error}; build it again with `feedline index --rebuild`")
    })
}

fn read_manifest(message: wire::Manifest) -> Result<Manifest, WireError> {
    Ok(Manifest { schema: read(message.schema, "manifest.schema")?, shards: read_all(message.shards)? })
}

impl TryFrom<wire::Shard> for Shard {
    type Error = WireError;

    fn try_from(shard: wire::Shard) -> Result<Self, WireError> {
        let object = super::required(shard.object, "shard.object")?.into();
        Ok(Self { object, index: read(shard.index, "shard.index")? })
    }
}

impl From<&ShardIndex> for wire::ShardIndex {
    fn from(index: &ShardIndex) -> Self {
        let blocks = &index.blocks;
        let any_rows = blocks.iter().any(|block| !block.row_bytes.is_empty());
        let sizes = blocks.iter().filter(|_| any_rows).map(|block| block.row_bytes.len() as u32);
        Self {
            block_rows: blocks.iter().map(|block| block.rows).collect(),
            block_offsets: blocks.iter().map(|block| block.offset).collect(),
            block_bytes: blocks.iter().map(|block| block.bytes).collect(),
            block_groups: blocks.iter().map(|block| block.group).collect(),
            block_row_sizes: sizes.collect(),
            row_bytes: blocks.iter().flat_map(|block| &block.row_bytes).copied().collect(),
            schema: index.schema.clone().map(Into::into),
            defects: all(index.defects.clone()),
        }
    }
}

impl TryFrom<wire::ShardIndex> for ShardIndex {
    type Error = WireError;

    fn try_from(index: wire::ShardIndex) -> Result<Self, WireError> {
        Ok(Self {
            blocks: read_blocks(&index)?,
            schema: read_optional(index.schema)?,
            defects: all(index.defects),
        })
    }
}

fn read_blocks(index: &wire::ShardIndex) -> Result<Vec<Block>, WireError> {
    let count = index.block_rows.len();
    let lens = [index.block_offsets.len(), index.block_bytes.len(), index.block_groups.len()];
    let sized = [0, count].contains(&index.block_row_sizes.len());
    if lens != [count; 3] || !sized {
        return Err(WireError(format!("the lists of a shard's {count} blocks differ in length")));
    }
    let mut row_bytes = index.row_bytes.as_slice();
    let mut blocks = Vec::with_capacity(count);
    for place in 0..count {
        let rows = index.block_row_sizes.get(place).copied().unwrap_or(0) as usize;
        let Some((mine, others)) = row_bytes.split_at_checked(rows) else {
            return Err(WireError(format!("the row sizes of a shard end before block {place}")));
        };
        row_bytes = others;
        blocks.push(Block {
            rows: index.block_rows[place],
            offset: index.block_offsets[place],
            bytes: index.block_bytes[place],
            group: index.block_groups[place],
            row_bytes: mine.to_vec(),
        });
    }
    if !row_bytes.is_empty() {
        return Err(WireError("a shard has more row sizes than its blocks".to_owned()));
    }
    Ok(blocks)
}

impl From<DatasetSummary> for wire::DatasetSummary {
    fn from(summary: DatasetSummary) -> Self {
        Self {
            fingerprint: summary.fingerprint,
            rows: summary.rows,
            bytes: summary.bytes,
            shards: summary.shards,
            blocks: summary.blocks,
            schema: Some(summary.schema.into()),
            defects: summary.defects,
            part_rows: summary.part_rows,
        }
    }
}

impl TryFrom<wire::DatasetSummary> for DatasetSummary {
    type Error = WireError;

    fn try_from(summary: wire::DatasetSummary) -> Result<Self, WireError> {
        Ok(Self {
            fingerprint: summary.fingerprint,
            rows: summary.rows,
            bytes: summary.bytes,
            shards: summary.shards,
            blocks: summary.blocks,
            schema: read(summary.schema, "dataset.schema")?,
            defects: summary.defects,
            part_rows: summary.part_rows,
        })
    }
}
