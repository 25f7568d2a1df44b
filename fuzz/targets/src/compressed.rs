//! The targets of compressed data, which decode it from its start, from its access points, and from arbitrary access points.

use feedline_compression::{Event, StreamDecoder, resume, start, store_content};
use feedline_data::compression::{AccessPoint, Codec, ShardCompression};
use feedline_data::manifest::{Block, ShardIndex};
use feedline_data::pipeline::{Format, Source};
use feedline_data::schema::{ColumnType, Schema};
use feedline_sources::BlockRead;

use crate::shards::{open, read_shard, shard_source};
use crate::thread_state::{block_on, ignore_contained_panics};

/// The magic and the method at the start of a gzip file. The inputs of the target `gzip` follow.
pub(crate) const GZIP_START: [u8; 3] = [0x1f, 0x8b, 8];
/// Maximum size of the decoded content. A few bytes can decode to much more.
const MAX_CONTENT_BYTES: usize = 4 << 20;
/// Maximum number of access points from which the data is decoded again.
const MAX_POINTS: usize = 8;
/// Number of compressed bytes by which the input of a decoder grows.
const LARGE_PIECE_BYTES: usize = 64 << 10;
const SMALL_PIECE_BYTES: usize = 100;
/// Size of the content that a seed stores in its access point.
const STORED_BYTES: usize = 16;
/// Maximum size of the content of a shard after or before its access point.
const MAX_RESUMED_BYTES: u64 = 1 << 20;

/// Decodes bzip2 data.
pub fn bzip2(bytes: &[u8]) {
    decode(bytes, Codec::Bzip2);
}

/// Decodes gzip data. The input is the data after the magic and the method of the first member of a file, so that it begins with
/// the flags of the header. The file is also read as text.
pub fn gzip(bytes: &[u8]) {
    let file = [&GZIP_START[..], bytes].concat();
    read_shard(&file, Format::Text, &[]);
    decode(&file, Codec::Gzip);
}

/// Decodes xz data.
pub fn xz(bytes: &[u8]) {
    decode(bytes, Codec::Xz);
}

/// Decodes zlib data.
pub fn zlib(bytes: &[u8]) {
    decode(bytes, Codec::Zlib);
}

/// Decodes zstd data.
pub fn zstd(bytes: &[u8]) {
    decode(bytes, Codec::Zstd);
}

/// Starts a decoder at an access point of a stored index: the codec, the offsets and the state of the access point are part of
/// the input, like the shard. The shard is decoded from the access point, and read as text.
pub fn access_point(bytes: &[u8]) {
    let Some(shard) = ResumedShard::parse(bytes) else { return };
    shard.decode();
    read_resumed(&shard);
}

/// A compressed shard and the only access point of its index.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResumedShard {
    pub(crate) codec: Codec,
    pub(crate) point: AccessPoint,
    pub(crate) bytes: Vec<u8>,
}

impl ResumedShard {
    /// Parses an input: the number of the codec (1 byte), the bit offset (8), the content offset (4), the size of the state
    /// (2), the state, and the shard. Numbers are little-endian.
    pub(crate) fn parse(input: &[u8]) -> Option<Self> {
        let (header, rest) = input.split_first_chunk::<15>()?;
        let [codec, offset @ .., c0, c1, c2, c3, s0, s1] = header;
        let state_bytes = usize::from(u16::from_le_bytes([*s0, *s1])).min(rest.len());
        let (state, bytes) = rest.split_at(state_bytes);
        let point = AccessPoint {
            bit_offset: u64::from_le_bytes(*offset),
            content_offset: u32::from_le_bytes([*c0, *c1, *c2, *c3]).into(),
            state: state.to_vec(),
        };
        let codec = Codec::ALL[usize::from(*codec) % Codec::ALL.len()];
        Some(Self { codec, point, bytes: bytes.to_vec() })
    }

    /// Returns the input that [`Self::parse`] parses. `None` if the content offset or the state is too large.
    pub(crate) fn to_input(&self) -> Option<Vec<u8>> {
        let codec = Codec::ALL.iter().position(|codec| *codec == self.codec)?;
        let content_offset = u32::try_from(self.point.content_offset).ok()?;
        let state_bytes = u16::try_from(self.point.state.len()).ok()?;
        let mut input = vec![codec as u8];
        input.extend(self.point.bit_offset.to_le_bytes());
        input.extend(content_offset.to_le_bytes());
        input.extend(state_bytes.to_le_bytes());
        input.extend(&self.point.state);
        input.extend(&self.bytes);
        Some(input)
    }

    /// Decodes the shard from the access point, with large and with small pieces of the compressed data.
    fn decode(&self) {
        ignore_contained_panics();
        let start = usize::try_from(self.point.bit_offset / 8)
            .map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
        let content = |piece: usize| {
            let decoder = resume(self.codec, &self.point).ok()?;
            Some(run(decoder, &self.bytes, start, 0, piece).0)
        };
        // Errors are expected; only panics, hangs and differences are failures.
        let (Some(large), Some(small)) = (content(LARGE_PIECE_BYTES), content(SMALL_PIECE_BYTES)) else {
            return;
        };
        let length = large.len().min(small.len());
        assert!(large[..length] == small[..length], "the content at {:?} depends on the pieces", self.point);
    }
}

/// Decodes data as a file of a codec, and compares the content from each access point with the content from the start.
fn decode(bytes: &[u8], codec: Codec) {
    ignore_contained_panics();
    let Ok(decoder) = start(codec) else { return };
    let (content, points) = run(decoder, bytes, 0, 0, LARGE_PIECE_BYTES);
    for point in &points {
        let decoder = resume(codec, point).expect("the decoder created this access point");
        let start = (point.bit_offset / 8) as usize;
        let (rest, _) = run(decoder, bytes, start, point.content_offset, SMALL_PIECE_BYTES);
        let whole = &content[point.content_offset as usize..];
        let length = rest.len().min(whole.len());
        assert!(rest[..length] == whole[..length], "the content at {point:?} differs");
        assert!(rest.len() >= whole.len(), "the content at {point:?} ends early");
    }
}

/// Reads text around the access point of a compressed shard, as a worker with a stored index does.
fn read_resumed(resumed: &ResumedShard) {
    let offset = resumed.point.content_offset;
    let compression = ShardCompression {
        codec: resumed.codec,
        content_bytes: offset + MAX_RESUMED_BYTES,
        readable_bytes: resumed.bytes.len() as u64,
        decoder_bytes: 0,
        points: vec![resumed.point.clone()],
    };
    // Decoding an index fails if this check fails.
    if compression.check().is_err() {
        return;
    }
    let block = |offset, bytes, group| Block { rows: 2, offset, bytes, group, row_bytes: Vec::new() };
    // The first block at the access point, and the first and the last block of a long run.
    let mut blocks = vec![block(offset, 32, 0), block(offset + 5, 32, 1), block(offset + 37, 60, 2)];
    // A block with the access point in its last row, which bzip2 reads from the state.
    if (24..MAX_RESUMED_BYTES).contains(&offset) {
        blocks.push(block(offset - 24, 32, 0));
    }
    let source = shard_source(&resumed.bytes, Format::Text, &[]);
    let index = ShardIndex { blocks, compression: Some(compression), ..ShardIndex::default() };
    block_on(read_text(source, &index));
}

async fn read_text(source: Source, index: &ShardIndex) {
    let schema = Schema::new([("text", ColumnType::Utf8)]);
    let dataset = open(source);
    for shard in dataset.list().await.unwrap_or_default() {
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, index: Some(index), schema: &schema, rows: None };
            // Errors are expected; only panics and hangs are failures.
            drop(dataset.read_block(&read).await);
        }
    }
}

/// Returns the first access points of a file.
pub(crate) fn access_points(bytes: &[u8], codec: Codec) -> Vec<AccessPoint> {
    let Ok(decoder) = start(codec) else { return Vec::new() };
    let (content, mut points) = run(decoder, bytes, 0, 0, LARGE_PIECE_BYTES);
    for point in &mut points {
        let after = &content[point.content_offset as usize..];
        store_content(codec, point, &after[..after.len().min(STORED_BYTES)]);
    }
    points
}

/// Decodes with pieces of `piece` bytes until the end or an error. Returns the content and the access points.
fn run(
    mut decoder: Box<dyn StreamDecoder>,
    bytes: &[u8],
    start: usize,
    content_start: u64,
    piece: usize,
) -> (Vec<u8>, Vec<AccessPoint>) {
    let history = decoder.take_history();
    let (mut content, mut points) = (vec![0; history.len() + MAX_CONTENT_BYTES], Vec::new());
    content[..history.len()].copy_from_slice(&history);
    let (mut filled, mut at, mut end) = (history.len(), start, start);
    loop {
        let step = decoder.decode(&bytes[at..end], end == bytes.len(), &mut content, filled);
        filled += decoder.produced();
        let Ok(step) = step else { break };
        at += step.consumed;
        match step.event {
            Event::NeedsInput => end = (end + piece).min(bytes.len()),
            Event::ContentFull | Event::End => break,
            // Computing the state takes long.
            Event::Boundary(_) if points.len() == MAX_POINTS => {}
            Event::Boundary(boundary) => {
                let window = &content[filled.saturating_sub(decoder.history_bytes())..filled];
                let state =
                    decoder.access_state(&boundary, window, &bytes[(boundary.bit_offset / 8) as usize..]);
                let content_offset = content_start + (filled - history.len()) as u64;
                points.push(AccessPoint { bit_offset: boundary.bit_offset, content_offset, state });
            }
        }
    }
    content.truncate(filled);
    content.drain(..history.len());
    (content, points)
}
