//! Manifests. The blocks of a shard are packed: one list for each field of a block.

use feedline_data::graph::GraphSummary;
use feedline_data::manifest::{
    Block, ChecksumAlgorithm, ColumnKind, ColumnNotes, ContentId, DatasetSummary, Defect, IndexedShard,
    Manifest, RoundedColumn, Shard, ShardChanges, ShardDigest, ShardIndex, ShardRef, ShardValue, ShardValues,
    SharedValues, StoreChecksum, TopicRange, TopicRanges, WidenedColumn,
};
use feedline_data::pipeline::PipelineId;
use feedline_data::runs::{PartRuns, RunSummary};
use feedline_data::shared_vec::SharedVec;
use prost::Message;

use super::{Wire, WireError, enumeration, message, required};
use crate::wire;

/// Version of an encoded manifest.
const MANIFEST_VERSION: u32 = 1;

message!(ShardRef, "shard", { url, size_bytes, version, part, values });
message!(ShardValue, "shard.values", { name, integer, text });

impl Wire<Vec<wire::ShardValue>> for ShardValues {
    fn into_wire(self) -> Vec<wire::ShardValue> {
        self.iter().cloned().map(Wire::into_wire).collect()
    }

    fn from_wire(values: Vec<wire::ShardValue>, field: &str) -> Result<Self, WireError> {
        let values: Vec<ShardValue> = Wire::from_wire(values, field)?;
        Ok(values.into())
    }
}

message!(Defect, "defect", { offset, reason });
message!(ShardChanges, "changes", { rewritten, added, removed });
message!(DatasetSummary, "dataset", {
    fingerprint, rows, bytes, shards, blocks, schema, defects, part_rows, widened, rounded, ignored, content, index, changes, is_compressed,
    runs, ranges, part_runs, batch_bytes, graph,
});
message!(ColumnNotes, "columns", { untyped, widened, rounded, kinds, ignored, is_fixed });
message!(ColumnKind, "kinds", { column, kind });
message!(RoundedColumn, "rounded", { column, reason });
message!(WidenedColumn, "widened", { column, from, to });
message!(TopicRanges, "ranges", { columns, partitions });
message!(TopicRange, "ranges.partitions", { url, range, part, block_rows, row_bytes });
message!(PartRuns, "part_runs", { is_compressed, long_rows, decoder_bytes, run_rows, lane_rows });
message!(RunSummary, "runs", { rows, decoder_bytes, group_starts, group_ends, lane_rows });

/// The summary of a graph has the form of its description.
impl Wire<wire::GraphSummary> for GraphSummary {
    fn into_wire(self) -> wire::GraphSummary {
        let json = serde_json::to_vec(&self).expect("a summary consists of text, numbers and lists");
        wire::GraphSummary { json: json.into() }
    }

    fn from_wire(message: wire::GraphSummary, field: &str) -> Result<Self, WireError> {
        serde_json::from_slice(&message.json).map_err(|error| {
            WireError(format!("cannot read `{field}`: {error}; use the same release on both sides"))
        })
    }
}

/// Encodes a manifest, for a file or for a stream of chunks.
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let schema = manifest.schema.clone().into_wire();
    let mut bytes = wire::Manifest { version: MANIFEST_VERSION, schema, shards: Vec::new() }.encode_to_vec();
    // A message is the concatenation of its parts. All shards as messages would need several times the memory of the manifest.
    for shard in &manifest.shards {
        let object = shard.object.clone().into_wire();
        let shard = wire::Shard { object, index: Some(write_index(&shard.index, shard.digest)) };
        let part = wire::Manifest { shards: vec![shard], ..wire::Manifest::default() };
        part.encode(&mut bytes).expect("a vector has room for a message");
    }
    bytes
}

/// Decodes a manifest that [`encode_manifest`] has encoded.
///
/// # Errors
/// Returns a message for corrupt bytes or a different version.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    let corrupt = |error: &dyn std::fmt::Display| {
        format!("the index is corrupt: {error}; rebuild it with `feedline index --rebuild`")
    };
    let (header, parts) = split_shards(bytes).map_err(|error| corrupt(&error))?;
    let message = wire::Manifest::decode(header.as_slice()).map_err(|error| corrupt(&error))?;
    if message.version != MANIFEST_VERSION {
        return Err(format!(
            "the index has version {}, but this release reads version {MANIFEST_VERSION}; rebuild it with `feedline index --rebuild`",
            message.version
        ));
    }
    let schema = Wire::from_wire(message.schema, "manifest.schema").map_err(|error| corrupt(&error))?;
    let mut shards: Vec<Shard> = Vec::with_capacity(parts.len());
    let (mut values, mut columns) = (SharedValues::default(), None);
    for part in parts {
        let shard = wire::Shard::decode(part).map_err(|error| corrupt(&error))?;
        let mut shard: Shard = Wire::from_wire(shard, "manifest.shards").map_err(|error| corrupt(&error))?;
        values.share(&mut shard.object.values);
        if let Some(schema) = &mut shard.index.schema {
            SharedVec::share([columns.get_or_insert_with(|| schema.fields.clone()), &mut schema.fields]);
        }
        shards.push(shard);
    }
    Ok(Manifest { schema, shards })
}

/// The number of the field with the shards.
const SHARDS_FIELD: u64 = 3;

/// Divides a manifest into its other fields and its shards. All shards as messages would need several times the memory of the
/// manifest.
fn split_shards(bytes: &[u8]) -> Result<(Vec<u8>, Vec<&[u8]>), String> {
    let (mut header, mut shards) = (Vec::new(), Vec::new());
    let mut rest = bytes;
    while !rest.is_empty() {
        let field = rest;
        let key = take_varint(&mut rest)?;
        let length = match key & 7 {
            0 => {
                take_varint(&mut rest)?;
                0
            }
            1 => 8,
            2 => usize::try_from(take_varint(&mut rest)?).unwrap_or(usize::MAX),
            5 => 4,
            other => return Err(format!("unknown wire type {other}")),
        };
        let (content, after) = rest.split_at_checked(length).ok_or("a field is truncated")?;
        rest = after;
        if key == SHARDS_FIELD << 3 | 2 {
            shards.push(content);
        } else {
            header.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    Ok((header, shards))
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or("a number is truncated")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than 64 bits".to_owned())
}

fn write_index(index: &ShardIndex, digest: Option<ShardDigest>) -> wire::ShardIndex {
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
        columns: Some(index.columns.clone().into_wire()),
        digest: digest.map(write_digest),
        compression: index.compression.clone().into_wire(),
        list_pages: index.list_pages.clone().into_wire(),
        graph: index.graph.clone().into_wire(),
    }
}

impl Wire<wire::ShardIndex> for IndexedShard {
    fn into_wire(self) -> wire::ShardIndex {
        write_index(&self.index, self.digest)
    }

    fn from_wire(message: wire::ShardIndex, _: &str) -> Result<Self, WireError> {
        let index = ShardIndex {
            blocks: read_blocks(&message)?,
            schema: Wire::from_wire(message.schema, "index.schema")?,
            defects: Wire::from_wire(message.defects, "index.defects")?,
            columns: Wire::from_wire(message.columns.unwrap_or_default(), "index.columns")?,
            compression: Wire::from_wire(message.compression, "index.compression")?,
            list_pages: Wire::from_wire(message.list_pages, "index.list_pages")?,
            graph: Wire::from_wire(message.graph, "index.graph")?,
        };
        Ok(Self { index, digest: message.digest.map(read_digest).transpose()? })
    }
}

impl Wire<wire::Shard> for Shard {
    fn into_wire(self) -> wire::Shard {
        let index = write_index(&self.index, self.digest);
        wire::Shard { object: self.object.into_wire(), index: Some(index) }
    }

    fn from_wire(message: wire::Shard, _: &str) -> Result<Self, WireError> {
        let indexed = required(message.index, "shard.index")?;
        let IndexedShard { index, digest } = Wire::from_wire(indexed, "shard.index")?;
        Ok(Self { object: Wire::from_wire(message.object, "shard.object")?, index, digest })
    }
}

enumeration!(ChecksumAlgorithm, { Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256 });

fn write_digest(digest: ShardDigest) -> wire::ShardDigest {
    use wire::shard_digest::Digest;
    let hash = digest.hash().to_vec();
    let checksum = digest.checksum().map(|checksum| wire::StoreChecksum {
        algorithm: checksum.algorithm().into_wire(),
        parts: checksum.parts(),
        value: checksum.value().to_vec().into(),
    });
    wire::ShardDigest {
        digest: Some(if digest.is_whole() { Digest::Whole(hash.into()) } else { Digest::Parts(hash.into()) }),
        checksum,
    }
}

fn read_digest(message: wire::ShardDigest) -> Result<ShardDigest, WireError> {
    use wire::shard_digest::Digest;
    let hash = |bytes: &[u8]| {
        <[u8; 32]>::try_from(bytes)
            .map_err(|_| WireError(format!("a digest has {} bytes instead of 32", bytes.len())))
    };
    let digest = match required(message.digest, "index.digest")? {
        Digest::Whole(bytes) => hash(&bytes).map(ShardDigest::Whole),
        Digest::Parts(bytes) => hash(&bytes).map(ShardDigest::Parts),
    }?;
    Ok(digest.with_checksum(message.checksum.map(read_checksum).transpose()?))
}

fn read_checksum(message: wire::StoreChecksum) -> Result<StoreChecksum, WireError> {
    let algorithm: ChecksumAlgorithm = Wire::from_wire(message.algorithm, "index.digest.checksum.algorithm")?;
    StoreChecksum::new(algorithm, message.parts, &message.value)
        .ok_or_else(|| WireError(format!("a {algorithm:?} checksum has {} bytes", message.value.len())))
}

impl Wire<String> for PipelineId {
    fn into_wire(self) -> String {
        self.into()
    }

    fn from_wire(text: String, _: &str) -> Result<Self, WireError> {
        Ok(text.into())
    }
}

impl Wire<String> for ContentId {
    fn into_wire(self) -> String {
        self.into()
    }

    fn from_wire(text: String, _: &str) -> Result<Self, WireError> {
        Ok(text.into())
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
