//! Manifests. The blocks of a shard are packed: one list for each field of a block.

use feedline_data::manifest::{Block, DatasetSummary, Defect, Manifest, Shard, ShardIndex, ShardRef};
use prost::Message;

use super::{Wire, WireError, field, message};
use crate::wire;

/// Version of an encoded manifest.
const MANIFEST_VERSION: u32 = 1;

message!(ShardRef, "shard", { url, size_bytes, version, part });
message!(Defect, "defect", { offset, reason });
message!(Shard, "shard", { object, index });
message!(DatasetSummary, "dataset", { fingerprint, rows, bytes, shards, blocks, schema, defects, part_rows });
field!(ShardIndex, ShardIndex);

/// Encodes a manifest, for a file or for a stream of chunks.
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let shards = manifest.shards.iter().map(|shard| wire::Shard {
        object: shard.object.clone().into_wire(),
        index: Some(write_index(&shard.index)),
    });
    let message = wire::Manifest {
        version: MANIFEST_VERSION,
        schema: manifest.schema.clone().into_wire(),
        shards: shards.collect(),
    };
    message.encode_to_vec()
}

/// Decodes a manifest that [`encode_manifest`] has encoded.
///
/// # Errors
/// Returns a message for corrupt bytes or a different version.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    let corrupt = |error: &dyn std::fmt::Display| {
        format!("the index is corrupt: {error}; rebuild it with `feedline index --rebuild`")
    };
    let message = wire::Manifest::decode(bytes).map_err(|error| corrupt(&error))?;
    if message.version != MANIFEST_VERSION {
        return Err(format!(
            "the index has version {}, but this release reads version {MANIFEST_VERSION}; rebuild it with `feedline index --rebuild`",
            message.version
        ));
    }
    let schema = Wire::from_wire(message.schema, "manifest.schema").map_err(|error| corrupt(&error))?;
    let shards = Wire::from_wire(message.shards, "manifest.shards").map_err(|error| corrupt(&error))?;
    Ok(Manifest { schema, shards })
}

fn write_index(index: &ShardIndex) -> wire::ShardIndex {
    let blocks = &index.blocks;
    let has_row_sizes = blocks.iter().any(|block| !block.row_bytes.is_empty());
    let sizes = blocks.iter().filter(|_| has_row_sizes).map(|block| block.row_bytes.len() as u32);
    wire::ShardIndex {
        block_rows: blocks.iter().map(|block| block.rows).collect(),
        block_offsets: blocks.iter().map(|block| block.offset).collect(),
        block_bytes: blocks.iter().map(|block| block.bytes).collect(),
        block_groups: blocks.iter().map(|block| block.group).collect(),
        block_row_sizes: sizes.collect(),
        row_bytes: blocks.iter().flat_map(|block| &block.row_bytes).copied().collect(),
        schema: index.schema.clone().into_wire(),
        defects: index.defects.clone().into_wire(),
    }
}

impl Wire<wire::ShardIndex> for ShardIndex {
    fn into_wire(self) -> wire::ShardIndex {
        write_index(&self)
    }

    fn from_wire(message: wire::ShardIndex, _: &str) -> Result<Self, WireError> {
        Ok(Self {
            blocks: read_blocks(&message)?,
            schema: Wire::from_wire(message.schema, "index.schema")?,
            defects: Wire::from_wire(message.defects, "index.defects")?,
        })
    }
}

fn read_blocks(index: &wire::ShardIndex) -> Result<Vec<Block>, WireError> {
    let count = index.block_rows.len();
    let lens = [index.block_offsets.len(), index.block_bytes.len(), index.block_groups.len()];
    let has_valid_sizes = [0, count].contains(&index.block_row_sizes.len());
    if lens != [count; 3] || !has_valid_sizes {
        return Err(WireError(format!("the per-block lists of a shard do not all have {count} entries")));
    }
    let mut row_bytes = index.row_bytes.as_slice();
    let mut blocks = Vec::with_capacity(count);
    for number in 0..count {
        let rows = index.block_row_sizes.get(number).copied().unwrap_or(0) as usize;
        let Some((of_block, rest)) = row_bytes.split_at_checked(rows) else {
            return Err(WireError(format!("a shard is missing row sizes from block {number} on")));
        };
        row_bytes = rest;
        blocks.push(Block {
            rows: index.block_rows[number],
            offset: index.block_offsets[number],
            bytes: index.block_bytes[number],
            group: index.block_groups[number],
            row_bytes: of_block.to_vec(),
        });
    }
    if !row_bytes.is_empty() {
        return Err(WireError("a shard has more row sizes than rows".to_owned()));
    }
    Ok(blocks)
}
