//! An index of a JPEG's entropy-coded data for random access, so that a crop does not decode the data before it.
//!
//! Huffman-coded data can only be decoded from its start, because the bit offset of a code and the previous DC value depend
//! on all earlier codes. A point of the index stores both for one MCU. The index is an APP10 segment of the JPEG. The
//! rest of the file is unchanged, and other decoders ignore the segment.

use crate::bits::BitPosition;
use crate::scan::{COMPONENTS, Scan};
use crate::segments::next_segment;

/// Minimum distance between two points of a row in pixels.
const SPACING_PIXELS: u32 = 64;
/// Stored size of a point: bit offset and DC values.
const POINT_BYTES: usize = 4 + 2 * COMPONENTS;
/// Size of the header before the points: length and checksum of the data, MCUs between points, points per row, rows.
const HEADER_BYTES: usize = 14;
/// Marker of the segment.
const SEGMENT_MARKER: u8 = 0xEA;
/// First bytes of the segment's body. The last byte is the version.
const SIGNATURE: &[u8] = b"Feedline\0\x01";
/// Maximum number of points, so that the index fits in one segment. Larger images have wider spacing.
const MAX_POINTS: usize = (65_533 - SIGNATURE.len() - HEADER_BYTES) / POINT_BYTES;
/// Number of words that the checksum covers.
const CHECKSUM_SAMPLES: usize = 64;

/// A position where decoding of a scan can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexPoint {
    /// Bits from the first byte of the data, including stuffed bytes.
    offset_bits: u32,
    /// DC values of the preceding blocks.
    pub(crate) dc: [i16; COMPONENTS],
}

impl IndexPoint {
    /// Creates a point. Returns `None` if the offset exceeds 32 bits.
    pub(crate) fn new(position: BitPosition, data_offset: usize, dc: [i16; COMPONENTS]) -> Option<Self> {
        let bytes = u32::try_from(position.byte.checked_sub(data_offset)?).ok()?;
        Some(Self { offset_bits: bytes.checked_mul(8)?.checked_add(position.bit)?, dc })
    }

    pub(crate) fn bit_position(self, data_offset: usize) -> BitPosition {
        BitPosition { byte: data_offset + (self.offset_bits / 8) as usize, bit: self.offset_bits % 8 }
    }
}

/// The grid of points over the MCUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PointGrid {
    /// MCUs between points of a row.
    spacing: u16,
    points_per_row: u16,
    rows: u16,
}

impl PointGrid {
    fn new(scan: &Scan) -> Self {
        let mut spacing = (SPACING_PIXELS / scan.column_width.max(1)).max(1);
        let points = |spacing: u32| scan.mcus_per_row.div_ceil(spacing) as usize * scan.mcu_rows as usize;
        while points(spacing) > MAX_POINTS && spacing < scan.mcus_per_row {
            spacing *= 2;
        }
        // Width and height of a JPEG are 16-bit numbers, so numbers of MCUs are too.
        let narrow = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        Self {
            spacing: narrow(spacing),
            points_per_row: narrow(scan.mcus_per_row.div_ceil(spacing)),
            rows: narrow(scan.mcu_rows),
        }
    }

    fn points(self) -> usize {
        usize::from(self.points_per_row) * usize::from(self.rows)
    }
}

/// Collects the points of an index in the order of the MCUs.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    grid: PointGrid,
    body: Vec<u8>,
}

impl IndexBuilder {
    /// Creates an empty index for a scan of this JPEG.
    pub(crate) fn new(jpeg: &[u8], scan: &Scan) -> Self {
        let grid = PointGrid::new(scan);
        let mut body = Vec::with_capacity(SIGNATURE.len() + HEADER_BYTES + grid.points() * POINT_BYTES);
        body.extend_from_slice(SIGNATURE);
        let data = jpeg.get(scan.data_offset..).unwrap_or_default();
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(checksum(data).to_le_bytes());
        [grid.spacing, grid.points_per_row, grid.rows]
            .iter()
            .for_each(|number| body.extend(number.to_le_bytes()));
        Self { grid, body }
    }

    /// Whether the index has a point at this MCU of the scan.
    pub(crate) fn is_point(&self, scan: &Scan, mcu: u64) -> bool {
        (mcu % u64::from(scan.mcus_per_row)).is_multiple_of(u64::from(self.grid.spacing))
    }

    pub(crate) fn push(&mut self, point: IndexPoint) {
        self.body.extend(point.offset_bits.to_le_bytes());
        point.dc.iter().for_each(|dc| self.body.extend(dc.to_le_bytes()));
    }

    /// Returns the JPEG with this index, inserted before its first segment that is not an APPn segment.
    pub(crate) fn insert(self, jpeg: &[u8]) -> Option<Vec<u8>> {
        let length = u16::try_from(self.body.len() + 2).ok()?;
        let mut at = 2;
        while let Some((0xE0..=0xEF, _, next)) = next_segment(jpeg, at) {
            at = next;
        }
        let (front, rest) = jpeg.split_at_checked(at)?;
        let mut indexed = Vec::with_capacity(jpeg.len() + 4 + self.body.len());
        indexed.extend_from_slice(front);
        indexed.extend([0xFF, SEGMENT_MARKER]);
        indexed.extend(length.to_be_bytes());
        indexed.extend(self.body);
        indexed.extend_from_slice(rest);
        Some(indexed)
    }
}

/// The index that a JPEG contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntropyIndex<'a> {
    data_bytes: u32,
    checksum: u32,
    grid: PointGrid,
    points: &'a [[u8; POINT_BYTES]],
}

impl<'a> EntropyIndex<'a> {
    /// Parses a segment. Returns `None` if the segment is not an index. Wrong points lead to wrong pixels or a decoding error,
    /// but never to reads outside of the data.
    pub(crate) fn from_segment(marker: u8, body: &'a [u8]) -> Option<Self> {
        let body = body.strip_prefix(SIGNATURE).filter(|_| marker == SEGMENT_MARKER)?;
        let (head, points) = body.split_first_chunk::<HEADER_BYTES>()?;
        let wide = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let grid = PointGrid { spacing: number(8), points_per_row: number(10), rows: number(12) };
        let (points, rest) = points.as_chunks::<POINT_BYTES>();
        let is_whole = grid.spacing > 0 && points.len() == grid.points() && rest.is_empty();
        is_whole.then_some(Self { data_bytes: wide(0), checksum: wide(4), grid, points })
    }

    /// Whether the index belongs to this scan of this JPEG. Tools that change the data may keep segments that they do not know.
    pub(crate) fn matches(&self, jpeg: &[u8], scan: &Scan) -> bool {
        let data = jpeg.get(scan.data_offset..).unwrap_or_default();
        u32::from(self.grid.rows) == scan.mcu_rows
            && u32::from(self.grid.points_per_row) == scan.mcus_per_row.div_ceil(u32::from(self.grid.spacing))
            && self.data_bytes as usize == data.len()
            && self.checksum == checksum(data)
    }

    /// Returns the last point at or before an MCU, and the MCU of the point.
    pub(crate) fn point_before(&self, scan: &Scan, mcu: u64) -> Option<(u64, IndexPoint)> {
        let (row, column) = (mcu / u64::from(scan.mcus_per_row), mcu % u64::from(scan.mcus_per_row));
        let position = column / u64::from(self.grid.spacing);
        let [a, b, c, d, dc @ ..] =
            self.points.get(usize::try_from(row * u64::from(self.grid.points_per_row) + position).ok()?)?;
        let value = |at: usize| i16::from_le_bytes([dc[at], dc[at + 1]]);
        let point = IndexPoint {
            offset_bits: u32::from_le_bytes([*a, *b, *c, *d]),
            dc: std::array::from_fn(|component| value(2 * component)),
        };
        let at = row * u64::from(scan.mcus_per_row) + position * u64::from(self.grid.spacing);
        Some((at, point))
    }
}

/// Returns FNV-1a over words at equal distances. This detects re-encoded data at low cost.
fn checksum(data: &[u8]) -> u32 {
    let step = (data.len() / CHECKSUM_SAMPLES).max(4);
    let words = data.chunks(step).filter_map(|chunk| chunk.first_chunk::<4>());
    words.fold(0x811C_9DC5, |sum, word| (sum ^ u32::from_le_bytes(*word)).wrapping_mul(0x0100_0193))
}
