//! The targets of compressed data, which decode it from its start, from its access points, and from arbitrary access points, and scan
//! it for positions at which decoding can start.

use feedline_compression::{
    Event, ScanEvent, ScannedStart, StreamDecoder, resume, scanner, start, store_content,
};
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
/// Number of compressed bytes by which the input of a decoder or scanner grows.
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
/// the input, like the shard. The shard is decoded and scanned from the access point, and read as text.
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

    /// Decodes and scans the shard from the access point, with large and with small pieces of the compressed data.
    fn decode(&self) {
        ignore_contained_panics();
        let start = usize::try_from(self.point.bit_offset / 8)
            .map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
        let content = |piece: usize| {
            let decoder = resume(self.codec, &self.point).ok()?;
            Some(run(decoder, &self.bytes, start, 0, piece).content)
        };
        // Errors are expected; only panics, hangs and differences are failures.
        let (Some(large), Some(small)) = (content(LARGE_PIECE_BYTES), content(SMALL_PIECE_BYTES)) else {
            return;
        };
        let length = large.len().min(small.len());
        assert!(large[..length] == small[..length], "the content at {:?} depends on the pieces", self.point);
        scan(self.codec, &self.point, &self.bytes);
    }
}

/// Decodes data as a file of a codec, and compares what decoders at its access points and scanners find.
fn decode(bytes: &[u8], codec: Codec) {
    ignore_contained_panics();
    let Ok(decoder) = start(codec) else { return };
    let whole = run(decoder, bytes, 0, 0, LARGE_PIECE_BYTES);
    for point in &whole.points {
        check_rest(bytes, codec, point, &whole);
    }
    for point in &whole.continuations {
        let rest = check_rest(bytes, codec, point, &whole);
        // A decoder with this state verifies everything that the first one does. Only bits between two blocks of bzip2, which belong
        // to neither, are an error for a decoder of both and not for a decoder of the second.
        let is_verified = whole.end == Some(Event::End) || whole.end.is_none() && codec != Codec::Bzip2;
        assert!(!is_verified || rest.end == whole.end, "{point:?}: {:?} and {:?}", rest.end, whole.end);
    }
    check_scanner(bytes, codec, &whole.continuations);
}

/// Decodes the rest of a file from an access point, and compares its content with that of the whole file.
fn check_rest(bytes: &[u8], codec: Codec, point: &AccessPoint, whole: &DecodedFile) -> DecodedFile {
    let decoder = resume(codec, point).expect("the decoder created this access point");
    let start = (point.bit_offset / 8) as usize;
    let rest = run(decoder, bytes, start, point.content_offset, SMALL_PIECE_BYTES);
    let expected = &whole.content[point.content_offset as usize..];
    let length = rest.content.len().min(expected.len());
    assert!(rest.content[..length] == expected[..length], "the content at {point:?} differs");
    assert!(rest.content.len() >= expected.len(), "the content at {point:?} ends early");
    rest
}

/// Scans a file from the first boundary that a decoder has reported, and compares the positions with its other boundaries.
fn check_scanner(bytes: &[u8], codec: Codec, boundaries: &[AccessPoint]) {
    let [first, others @ ..] = boundaries else { return };
    let found = scan(codec, first, bytes);
    // A block of bzip2 may contain the magic of another one, and a bgzip member may state a wrong size.
    if !matches!(codec, Codec::Xz | Codec::Zstd) {
        return;
    }
    assert!(found.len() >= others.len(), "the scanner found {found:?} instead of {others:?}");
    for ((position, boundary), before) in found.iter().zip(others).zip(boundaries) {
        let point = AccessPoint { content_offset: boundary.content_offset, ..position.point.clone() };
        assert_eq!(point, *boundary, "the scanner found another position");
        let bytes = boundary.content_offset - before.content_offset;
        assert!(position.content_bytes.is_none_or(|stated| stated == bytes), "{position:?}: {bytes} bytes");
    }
}

/// Scans a file from a position on, with large and with small pieces. Returns the positions that the scanner finds.
fn scan(codec: Codec, start: &AccessPoint, bytes: &[u8]) -> Vec<ScannedStart> {
    let found = scan_pieces(codec, start, bytes, LARGE_PIECE_BYTES);
    let small = scan_pieces(codec, start, bytes, SMALL_PIECE_BYTES);
    assert_eq!(found, small, "the positions after {start:?} depend on the pieces");
    found
}

/// Scans with pieces of `piece` bytes until the end, or until the scanner stops.
fn scan_pieces(codec: Codec, start: &AccessPoint, bytes: &[u8], piece: usize) -> Vec<ScannedStart> {
    let Some(mut scanner) = scanner(codec, start) else { return Vec::new() };
    let first = usize::try_from(start.bit_offset / 8).map_or(bytes.len(), |at| at.min(bytes.len()));
    let (mut at, mut end) = (first, first);
    let (mut found, mut last_bit) = (Vec::new(), start.bit_offset);
    loop {
        let step = scanner.scan(&bytes[at..end]);
        assert!(step.consumed <= end - at, "the scanner consumed more than its input");
        at += step.consumed;
        match step.event {
            ScanEvent::NeedsInput if end < bytes.len() => end = (end + piece).min(bytes.len()),
            ScanEvent::NeedsInput | ScanEvent::Stop => return found,
            ScanEvent::Start(position) => {
                let bit = position.point.bit_offset;
                assert!(bit > last_bit && bit / 8 < end as u64, "{position:?} after bit {last_bit}");
                last_bit = bit;
                found.push(position);
            }
        }
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
    let DecodedFile { content, mut points, .. } = run(decoder, bytes, 0, 0, LARGE_PIECE_BYTES);
    for point in &mut points {
        let after = &content[point.content_offset as usize..];
        store_content(codec, point, &after[..after.len().min(STORED_BYTES)]);
    }
    points
}

/// What a decoder found in a file.
struct DecodedFile {
    content: Vec<u8>,
    /// The first access points.
    points: Vec<AccessPoint>,
    /// Those of the points at which a scanner can start, with the states of [`StreamDecoder::continuation`].
    continuations: Vec<AccessPoint>,
    /// The last event. `None` if the data is damaged or truncated.
    end: Option<Event>,
}

/// Decodes with pieces of `piece` bytes until the end or an error.
fn run(
    mut decoder: Box<dyn StreamDecoder>,
    bytes: &[u8],
    start: usize,
    content_start: u64,
    piece: usize,
) -> DecodedFile {
    let history = decoder.take_history();
    let mut content = vec![0; history.len() + MAX_CONTENT_BYTES];
    let (mut points, mut continuations) = (Vec::new(), Vec::new());
    content[..history.len()].copy_from_slice(&history);
    let (mut filled, mut at, mut end) = (history.len(), start, start);
    let last_event = loop {
        let step = decoder.decode(&bytes[at..end], end == bytes.len(), &mut content, filled);
        filled += decoder.produced();
        let Ok(step) = step else { break None };
        at += step.consumed;
        match step.event {
            Event::NeedsInput => end = (end + piece).min(bytes.len()),
            Event::ContentFull | Event::End => break Some(step.event),
            // Computing the state takes long.
            Event::Boundary(_) if points.len() == MAX_POINTS => {}
            Event::Boundary(boundary) => {
                let window = &content[filled.saturating_sub(decoder.history_bytes())..filled];
                let state =
                    decoder.access_state(&boundary, window, &bytes[(boundary.bit_offset / 8) as usize..]);
                let content_offset = content_start + (filled - history.len()) as u64;
                let point = |state| AccessPoint { bit_offset: boundary.bit_offset, content_offset, state };
                points.push(point(state));
                continuations.extend(decoder.continuation(&boundary).map(point));
            }
        }
    };
    content.truncate(filled);
    content.drain(..history.len());
    DecodedFile { content, points, continuations, end: last_event }
}
