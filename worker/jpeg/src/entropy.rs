//! Reads the entropy-coded data of a baseline JPEG by MCU. Decodes requested MCUs, skips other MCUs faster, and starts in
//! the middle of the data if the JPEG has an index.

use crate::bits::{BitReader, FILLED_BITS};
use crate::huffman::{AcTable, CODE_ONLY, DcTable, END_OF_BLOCK, LOOKUP_BITS, Tables, ZERO_RUN, extend_sign};
use crate::index::{EntropyIndex, IndexBuilder, IndexPoint};
use crate::scan::{BLOCKS_PER_MCU, COMPONENTS, Scan};
use crate::structure::{RestartMarkers, has_expected_markers, has_hole};

/// Table lookups per fill of the bit buffer.
const LOOKUPS_PER_FILL: u32 = FILLED_BITS / LOOKUP_BITS;

/// Coefficients of a block in natural order.
pub(crate) type DctBlock = [i16; 64];

/// The zigzag order: index of each coefficient in its block, in coding order (T.81, figure A.6).
const NATURAL_ORDER: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The component and tables of a block of an MCU.
#[derive(Debug, Clone, Copy)]
struct BlockTables<'a> {
    component: usize,
    dc: &'a DcTable,
    ac: &'a AcTable,
}

/// Reads a scan. Stops permanently at invalid data; see [`ScanReader::is_complete`].
#[derive(Debug)]
pub(crate) struct ScanReader<'a> {
    scan: &'a Scan,
    blocks: Vec<BlockTables<'a>>,
    bits: BitReader<'a>,
    /// Previous DC value of each component.
    dc: [i16; COMPONENTS],
    /// The next MCU in `bits`.
    position: u64,
    /// Whether the restart marker before `position` has been skipped.
    is_restart_skipped: bool,
    /// The MCU that libjpeg will request next.
    requested: u64,
    /// Columns of MCUs to decode.
    wanted_columns: std::ops::Range<u64>,
    index: Option<EntropyIndex<'a>>,
    is_valid: bool,
}

impl<'a> ScanReader<'a> {
    /// Creates a reader. Returns `None` if the scan refers to missing tables or components.
    pub(crate) fn new(jpeg: &'a [u8], scan: &'a Scan, tables: &'a Tables) -> Option<Self> {
        if scan.blocks == 0 || scan.blocks > BLOCKS_PER_MCU || scan.mcus_per_row == 0 {
            return None;
        }
        let kind = |block: usize| {
            let component = usize::from(scan.component[block]);
            let dc = tables.dc.get(usize::from(scan.dc_table[block]))?.as_ref()?;
            let ac = tables.ac.get(usize::from(scan.ac_table[block]))?.as_ref()?;
            (component < COMPONENTS).then_some(BlockTables { component, dc, ac })
        };
        Some(Self {
            scan,
            blocks: (0..scan.blocks).map(kind).collect::<Option<_>>()?,
            bits: BitReader::new(jpeg, scan.data_offset),
            dc: [0; COMPONENTS],
            position: 0,
            is_restart_skipped: false,
            requested: 0,
            wanted_columns: 0..u64::from(scan.mcus_per_row),
            index: None,
            is_valid: true,
        })
    }

    /// Decodes only the MCUs of these columns.
    pub(crate) fn set_columns(&mut self, first: u32, end: u32) {
        self.wanted_columns = u64::from(first)..u64::from(end);
    }

    /// Uses the points of an index that belongs to this scan.
    pub(crate) fn use_index(&mut self, index: Option<EntropyIndex<'a>>) {
        self.index = index;
    }

    /// Whether all data read so far is valid and, if the last MCU has been read, the image ends after it. A missing end marker
    /// loses nothing.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_valid && (self.position < self.scan.mcus() || { self.bits }.skip_end())
    }

    /// Whether the structure of the data is as expected. If not, the data that was not read may be incomplete.
    ///
    /// Profiles show its cost, as it is not inlined (`make jpeg-check`).
    #[inline(never)]
    pub(crate) fn has_expected_structure(&self) -> bool {
        // The data before a point of an index may not have been read.
        if self.position == self.scan.mcus() && self.index.is_none() {
            return true;
        }
        let interval = u64::from(self.scan.restart_interval);
        let before = |mcus: u64| if interval == 0 { 0 } else { mcus.div_ceil(interval).saturating_sub(1) };
        let (first, start) = match self.index {
            Some(_) => (0, self.scan.data_offset),
            None => match self.bits.position() {
                Some(position) => (before(self.position), position.byte),
                None => return false,
            },
        };
        let restarts = RestartMarkers { first, count: before(self.scan.mcus()) };
        has_expected_markers(self.bits.rest(start), restarts)
            && !has_hole(self.bits.rest(self.scan.data_offset))
    }

    /// Reads the rest of the scan. Returns whether it is complete.
    #[inline(always)]
    pub(crate) fn read_to_end(&mut self) -> bool {
        while self.is_valid && self.position < self.scan.mcus() {
            self.skip_current();
        }
        self.is_complete()
    }

    /// Skips the MCU that libjpeg requests.
    pub(crate) fn skip_mcu(&mut self) {
        self.requested += 1;
    }

    /// Decodes the MCU that libjpeg requests into its blocks, which are zero, if its column is requested. Returns `false` for
    /// invalid data.
    #[inline(always)]
    pub(crate) fn next_mcu<'b>(&mut self, block: impl Fn(usize) -> &'b mut DctBlock) -> bool {
        let wanted = self.requested;
        self.requested += 1;
        if !self.wanted_columns.contains(&(wanted % u64::from(self.scan.mcus_per_row))) {
            return self.is_valid;
        }
        if self.position < wanted {
            self.seek_near(wanted);
        }
        while self.is_valid && self.position < wanted {
            self.skip_current();
        }
        self.is_valid && self.decode(block)
    }

    /// Seeks to the last point of the index before an MCU, if that point is ahead of the current position.
    fn seek_near(&mut self, wanted: u64) {
        let Some((mcu, point)) = self.index.and_then(|index| index.point_before(self.scan, wanted)) else {
            return;
        };
        if mcu > self.position {
            self.bits.seek(point.bit_position(self.scan.data_offset));
            self.dc = point.dc;
            self.position = mcu;
            self.is_restart_skipped = true;
        }
    }

    /// Skips the restart marker before the current MCU, if there is one.
    #[inline(always)]
    fn skip_restart_marker(&mut self) -> bool {
        if std::mem::replace(&mut self.is_restart_skipped, false) {
            return true;
        }
        let interval = u64::from(self.scan.restart_interval);
        if interval > 0 && self.position > 0 && self.position.is_multiple_of(interval) {
            let marker = 0xD0 + ((self.position / interval + 7) % 8) as u8;
            self.dc = [0; COMPONENTS];
            return self.bits.skip_marker(marker);
        }
        true
    }

    /// Decodes the current MCU.
    #[inline(always)]
    fn decode<'b>(&mut self, block: impl Fn(usize) -> &'b mut DctBlock) -> bool {
        let mut valid = self.skip_restart_marker();
        for (index, kind) in self.blocks.iter().enumerate() {
            let Some(dc) = read_dc(&mut self.bits, kind.dc) else {
                valid = false;
                break;
            };
            let dc = dc.wrapping_add(self.dc[kind.component]);
            self.dc[kind.component] = dc;
            let block = block(index);
            block[0] = dc;
            if !read_ac::<true>(&mut self.bits, kind.ac, block) {
                valid = false;
                break;
            }
        }
        self.position += 1;
        self.is_valid &= valid && !self.bits.is_overrun();
        self.is_valid
    }

    /// Skips the current MCU, and updates only the DC values.
    #[inline(always)]
    fn skip_current(&mut self) {
        let mut valid = self.skip_restart_marker();
        let mut none = [0; 64];
        for kind in &self.blocks {
            let Some(dc) = read_dc(&mut self.bits, kind.dc) else {
                valid = false;
                break;
            };
            self.dc[kind.component] = dc.wrapping_add(self.dc[kind.component]);
            if !read_ac::<false>(&mut self.bits, kind.ac, &mut none) {
                valid = false;
                break;
            }
        }
        self.position += 1;
        self.is_valid &= valid && !self.bits.is_overrun();
    }

    /// Reads the whole scan and adds the points of its index. Returns `None` for invalid data.
    pub(crate) fn build_index(mut self, mut index: IndexBuilder) -> Option<IndexBuilder> {
        while self.position < self.scan.mcus() && self.is_valid {
            if index.is_point(self.scan, self.position) {
                if !self.skip_restart_marker() {
                    return None;
                }
                self.is_restart_skipped = true;
                index.push(IndexPoint::new(self.bits.position()?, self.scan.data_offset, self.dc)?);
            }
            self.skip_current();
        }
        self.is_complete().then_some(index)
    }
}

/// Reads a DC difference. Returns `None` for an invalid code.
#[inline(always)]
fn read_dc(bits: &mut BitReader<'_>, table: &DcTable) -> Option<i16> {
    bits.fill();
    let (length, difference) = table.find_difference(bits.peek(16));
    if length > 0 {
        bits.skip(length);
        return Some(difference);
    }
    let (length, size) = table.find_code(bits.peek(16))?;
    bits.skip(length);
    Some(extend_sign(bits.read_bits(size), size) as i16)
}

/// Reads the AC coefficients of a block, and stores them in `block` if `STORE` is set. Returns `false` for an invalid code or
/// too many coefficients.
#[inline(always)]
fn read_ac<const STORE: bool>(reader: &mut BitReader<'_>, table: &AcTable, block: &mut DctBlock) -> bool {
    let mut store = |index: usize, value: i16| {
        if STORE {
            block[usize::from(NATURAL_ORDER[index & 63])] = value;
        }
    };
    // A local copy of the reader stays in registers.
    let mut bits = *reader;
    let mut last = 0;
    let valid = 'block: loop {
        bits.fill();
        for _ in 0..LOOKUPS_PER_FILL {
            let lookup = bits.peek(LOOKUP_BITS) as usize;
            let pair = table.pair(lookup);
            let next = last + pair.advance();
            // A full block has no end code; the next bits belong to the next block.
            if next < 63 {
                bits.skip(pair.length());
                // Store the second value first: if the pair has only one coefficient, the first overwrites it.
                store(next, pair.second_value());
                store(last + pair.first_advance(), pair.first_value());
                last = next;
                continue;
            }
            if let Some(advance) = pair.end_advance().filter(|advance| last + advance < 63) {
                bits.skip(pair.length());
                if advance > 0 {
                    store(last + advance, pair.second_value());
                    store(last + pair.first_advance(), pair.first_value());
                }
                break 'block true;
            }
            bits.fill();
            match read_ac_symbol(&mut bits, table, lookup) {
                AcSymbol::Value(advance, value) => {
                    last += advance;
                    store(last, value);
                }
                AcSymbol::ZeroRun => last += 16,
                AcSymbol::EndOfBlock => break 'block true,
                AcSymbol::Invalid => break 'block false,
            }
            if last >= 63 {
                break 'block last == 63;
            }
            break;
        }
    };
    *reader = bits;
    valid
}

/// A decoded AC code.
enum AcSymbol {
    /// Distance from the previous coefficient, and the value.
    Value(usize, i16),
    /// Sixteen zero coefficients.
    ZeroRun,
    EndOfBlock,
    Invalid,
}

/// Reads one code with its value. `lookup` contains the first bits of the code.
#[inline(always)]
fn read_ac_symbol(bits: &mut BitReader<'_>, table: &AcTable, lookup: usize) -> AcSymbol {
    let entry = table.entry(lookup);
    bits.skip(entry.length());
    match entry.kind() {
        0 => AcSymbol::Value(entry.advance(), entry.value()),
        END_OF_BLOCK => AcSymbol::EndOfBlock,
        ZERO_RUN => AcSymbol::ZeroRun,
        CODE_ONLY => {
            let size = entry.value() as u32;
            AcSymbol::Value(entry.advance(), extend_sign(bits.read_bits(size), size) as i16)
        }
        _ => {
            let Some((length, symbol)) = table.find_long_code(bits.peek(16)) else {
                return AcSymbol::Invalid;
            };
            bits.skip(length);
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            match (size, run) {
                (0, 15) => AcSymbol::ZeroRun,
                (0, _) => AcSymbol::EndOfBlock,
                _ => AcSymbol::Value(run + 1, extend_sign(bits.read_bits(size), size) as i16),
            }
        }
    }
}
