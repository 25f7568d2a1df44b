//! An index of a JPEG's entropy-coded data: where it can be entered, so that a crop need not decode what lies before.
//!
//! Huffman codes can be read from their start only, since a code's place and the DC value before it follow from all
//! that came earlier. A point of the index holds both for one MCU. It travels in an APP10 segment of the JPEG, which is
//! otherwise untouched: every decoder reads it, and passes over the segment.

use crate::bits::BitPlace;
use crate::entropy::{COMPONENTS, Scan};
use crate::exif::next_segment;

/// Pixels between two points of a row, at least.
const SPACING_PIXELS: u32 = 64;
/// Bytes of a point as stored: bit offset and DC values.
const POINT_BYTES: usize = 4 + 2 * COMPONENTS;
/// Bytes in front of the points: length and checksum of the data, columns between points, points in a row, rows.
const HEAD_BYTES: usize = 14;
/// Marker of the segment, and what its body starts with; the last byte is the version.
const SEGMENT: u8 = 0xEA;
const NAME: &[u8] = b"Feedline\0\x01";
/// The most points that an index may have, so that it fits one segment; larger images get wider spacing.
const MAX_POINTS: usize = (65_533 - NAME.len() - HEAD_BYTES) / POINT_BYTES;
/// Places of the data that the checksum covers.
const SAMPLES: usize = 64;

/// A place at which a scan can be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// Bits from the first byte of the data, stuffed bytes counted.
    offset_bits: u32,
    /// DC values before it.
    pub(crate) dc: [i16; COMPONENTS],
}

impl Point {
    /// `None` where the data is too large to say.
    pub(crate) fn new(place: BitPlace, data_offset: usize, dc: [i16; COMPONENTS]) -> Option<Self> {
        let bytes = u32::try_from(place.byte.checked_sub(data_offset)?).ok()?;
        Some(Self { offset_bits: bytes.checked_mul(8)?.checked_add(place.bit)?, dc })
    }

    pub(crate) fn place(self, data_offset: usize) -> BitPlace {
        BitPlace { byte: data_offset + (self.offset_bits / 8) as usize, bit: self.offset_bits % 8 }
    }
}

/// Where points lie: a grid over the MCUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    /// MCUs between points of a row.
    spacing: u16,
    points_per_row: u16,
    rows: u16,
}

impl Grid {
    fn new(scan: &Scan) -> Self {
        let mut spacing = (SPACING_PIXELS / scan.column_width.max(1)).max(1);
        let points = |spacing: u32| scan.mcus_per_row.div_ceil(spacing) as usize * scan.mcu_rows as usize;
        while points(spacing) > MAX_POINTS && spacing < scan.mcus_per_row {
            spacing *= 2;
        }
        // JPEG sides are 16-bit numbers, so that counts of MCUs are as well.
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

/// Collects the points of an index, in the order of the MCUs.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    grid: Grid,
    body: Vec<u8>,
}

impl IndexBuilder {
    /// An empty index for a scan of this JPEG.
    pub(crate) fn new(jpeg: &[u8], scan: &Scan) -> Self {
        let grid = Grid::new(scan);
        let mut body = Vec::with_capacity(NAME.len() + HEAD_BYTES + grid.points() * POINT_BYTES);
        body.extend_from_slice(NAME);
        let data = jpeg.get(scan.data_offset..).unwrap_or_default();
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(checksum(data).to_le_bytes());
        [grid.spacing, grid.points_per_row, grid.rows]
            .iter()
            .for_each(|number| body.extend(number.to_le_bytes()));
        Self { grid, body }
    }

    /// Whether an MCU of the scan is one at which a point belongs.
    pub(crate) fn is_point(&self, scan: &Scan, mcu: u64) -> bool {
        (mcu % u64::from(scan.mcus_per_row)).is_multiple_of(u64::from(self.grid.spacing))
    }

    pub(crate) fn push(&mut self, point: Point) {
        self.body.extend(point.offset_bits.to_le_bytes());
        point.dc.iter().for_each(|dc| self.body.extend(dc.to_le_bytes()));
    }

    /// The JPEG with this index in it: in front of its first segment that is of no application.
    pub(crate) fn insert(self, jpeg: &[u8]) -> Option<Vec<u8>> {
        let length = u16::try_from(self.body.len() + 2).ok()?;
        let mut at = 2;
        while let Some((0xE0..=0xEF, _, next)) = next_segment(jpeg, at) {
            at = next;
        }
        let (front, rest) = jpeg.split_at_checked(at)?;
        let mut indexed = Vec::with_capacity(jpeg.len() + 4 + self.body.len());
        indexed.extend_from_slice(front);
        indexed.extend([0xFF, SEGMENT]);
        indexed.extend(length.to_be_bytes());
        indexed.extend(self.body);
        indexed.extend_from_slice(rest);
        Some(indexed)
    }
}

/// The index that a JPEG brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntropyIndex<'a> {
    data_bytes: u32,
    checksum: u32,
    grid: Grid,
    points: &'a [[u8; POINT_BYTES]],
}

impl<'a> EntropyIndex<'a> {
    /// What a segment holds, `None` where it is no index. Wrong points in bytes of the right shape lead to wrong pixels or
    /// a refusal, never beyond the data.
    pub(crate) fn from_segment(marker: u8, body: &'a [u8]) -> Option<Self> {
        let body = body.strip_prefix(NAME).filter(|_| marker == SEGMENT)?;
        let (head, points) = body.split_first_chunk::<HEAD_BYTES>()?;
        let wide = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let grid = Grid { spacing: number(8), points_per_row: number(10), rows: number(12) };
        let (points, rest) = points.as_chunks::<POINT_BYTES>();
        let is_whole = grid.spacing > 0 && points.len() == grid.points() && rest.is_empty();
        is_whole.then_some(Self { data_bytes: wide(0), checksum: wide(4), grid, points })
    }

    /// Whether it is of this scan of this JPEG: tools that change the data may keep segments that they do not know.
    pub(crate) fn fits(&self, jpeg: &[u8], scan: &Scan) -> bool {
        let data = jpeg.get(scan.data_offset..).unwrap_or_default();
        u32::from(self.grid.rows) == scan.mcu_rows
            && u32::from(self.grid.points_per_row) == scan.mcus_per_row.div_ceil(u32::from(self.grid.spacing))
            && self.data_bytes as usize == data.len()
            && self.checksum == checksum(data)
    }

    /// The last point at or before an MCU, with the MCU that it stands at.
    pub(crate) fn before(&self, scan: &Scan, mcu: u64) -> Option<(u64, Point)> {
        let (row, column) = (mcu / u64::from(scan.mcus_per_row), mcu % u64::from(scan.mcus_per_row));
        let place = column / u64::from(self.grid.spacing);
        let [a, b, c, d, dc @ ..] =
            self.points.get(usize::try_from(row * u64::from(self.grid.points_per_row) + place).ok()?)?;
        let value = |at: usize| i16::from_le_bytes([dc[at], dc[at + 1]]);
        let point = Point {
            offset_bits: u32::from_le_bytes([*a, *b, *c, *d]),
            dc: std::array::from_fn(|component| value(2 * component)),
        };
        let at = row * u64::from(scan.mcus_per_row) + place * u64::from(self.grid.spacing);
        Some((at, point))
    }
}

/// FNV-1a over words at even distances: enough to tell data that was coded anew, at no cost.
fn checksum(data: &[u8]) -> u32 {
    let step = (data.len() / SAMPLES).max(4);
    let words = data.chunks(step).filter_map(|chunk| chunk.first_chunk::<4>());
    words.fold(0x811C_9DC5, |sum, word| (sum ^ u32::from_le_bytes(*word)).wrapping_mul(0x0100_0193))
}
