//! The entropy-coded data of a baseline JPEG, MCU by MCU: decoded where the coefficients are wanted, passed quickly
//! where they are not, entered in the middle where an index says how.

use crate::bits::{BitReader, FILLED_BITS};
use crate::huffman::{AcTable, CODE_ONLY, DcTable, END_OF_BLOCK, LOOK_BITS, Tables, ZEROES, extend};
use crate::index::{EntropyIndex, IndexBuilder, Point};

/// The most blocks an MCU may have.
pub(crate) const BLOCKS_PER_MCU: usize = 10;
/// The most components.
pub(crate) const COMPONENTS: usize = 3;

/// Looks that the bits of one fill suffice for.
const LOOKS_PER_FILL: u32 = FILLED_BITS / LOOK_BITS;

/// Coefficients of a block in natural order.
pub(crate) type DctBlock = [i16; 64];

/// T.81, figure A.6: natural place of the coefficients in the order in which they are coded.
const NATURAL: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// What the headers say of the one scan.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub(crate) mcus_per_row: u32,
    pub(crate) mcu_rows: u32,
    /// Blocks of an MCU.
    pub(crate) blocks: usize,
    /// MCUs between restart markers; 0 where there are none.
    pub(crate) restart_interval: u32,
    /// Width of an MCU in pixels.
    pub(crate) column_width: u32,
    /// First byte of the entropy-coded data.
    pub(crate) data_offset: usize,
    /// For each block of an MCU.
    pub(crate) component: [u8; BLOCKS_PER_MCU],
    pub(crate) dc_table: [u8; BLOCKS_PER_MCU],
    pub(crate) ac_table: [u8; BLOCKS_PER_MCU],
}

/// A block of an MCU: its component and tables.
#[derive(Debug, Clone, Copy)]
struct BlockKind<'a> {
    component: usize,
    dc: &'a DcTable,
    ac: &'a AcTable,
}

/// Reads a scan. Anything that is not sound stops it for good: see [`ScanReader::is_sound`].
#[derive(Debug)]
pub(crate) struct ScanReader<'a> {
    scan: &'a Scan,
    blocks: Vec<BlockKind<'a>>,
    bits: BitReader<'a>,
    /// DC values of the blocks before.
    dc: [i16; COMPONENTS],
    /// The MCU that `bits` stands before.
    at: u64,
    /// The restart marker before `at`, if any, has been passed.
    entered: bool,
    /// The MCU that libjpeg asks for next.
    asked: u64,
    /// Columns of MCUs that are wanted.
    columns: std::ops::Range<u64>,
    index: Option<EntropyIndex<'a>>,
    sound: bool,
}

impl<'a> ScanReader<'a> {
    /// `None` where the scan names tables or components that there are not.
    pub(crate) fn new(jpeg: &'a [u8], scan: &'a Scan, tables: &'a Tables) -> Option<Self> {
        if scan.blocks == 0 || scan.blocks > BLOCKS_PER_MCU || scan.mcus_per_row == 0 {
            return None;
        }
        let kind = |block: usize| {
            let component = usize::from(scan.component[block]);
            let dc = tables.dc.get(usize::from(scan.dc_table[block]))?.as_ref()?;
            let ac = tables.ac.get(usize::from(scan.ac_table[block]))?.as_ref()?;
            (component < COMPONENTS).then_some(BlockKind { component, dc, ac })
        };
        Some(Self {
            scan,
            blocks: (0..scan.blocks).map(kind).collect::<Option<_>>()?,
            bits: BitReader::new(jpeg, scan.data_offset),
            dc: [0; COMPONENTS],
            at: 0,
            entered: false,
            asked: 0,
            columns: 0..u64::from(scan.mcus_per_row),
            index: None,
            sound: true,
        })
    }

    /// Wants the MCUs of these columns only.
    pub(crate) fn want(&mut self, first: u32, end: u32) {
        self.columns = u64::from(first)..u64::from(end);
    }

    /// Enters the data at the points of this index, which fits the scan.
    pub(crate) fn use_index(&mut self, index: Option<EntropyIndex<'a>>) {
        self.index = index;
    }

    /// Whether all that was read so far is sound, and, once the last MCU has been read, the image ends there.
    pub(crate) fn is_sound(&self) -> bool {
        let total = u64::from(self.scan.mcus_per_row) * u64::from(self.scan.mcu_rows);
        self.sound && (self.at < total || { self.bits }.pass_marker(0xD9))
    }

    /// Steps over the MCU that libjpeg asks for.
    pub(crate) fn pass_mcu(&mut self) {
        self.asked += 1;
    }

    /// Decodes the MCU that libjpeg asks for into its blocks, which are zero, unless it is in a column that is not
    /// wanted. `false` where it cannot.
    #[inline(always)]
    pub(crate) fn next_mcu<'b>(&mut self, block: impl Fn(usize) -> &'b mut DctBlock) -> bool {
        let wanted = self.asked;
        self.asked += 1;
        if !self.columns.contains(&(wanted % u64::from(self.scan.mcus_per_row))) {
            return self.sound;
        }
        if self.at < wanted {
            self.enter_near(wanted);
        }
        while self.sound && self.at < wanted {
            self.walk();
        }
        self.sound && self.decode(block)
    }

    /// Goes to the last point of the index before an MCU, if that saves anything.
    fn enter_near(&mut self, wanted: u64) {
        let Some((mcu, point)) = self.index.and_then(|index| index.before(self.scan, wanted)) else { return };
        if mcu > self.at {
            self.bits.seek(point.place(self.scan.data_offset));
            self.dc = point.dc;
            self.at = mcu;
            self.entered = true;
        }
    }

    /// Passes a restart marker where one stands before the present MCU.
    #[inline(always)]
    fn enter(&mut self) -> bool {
        if std::mem::replace(&mut self.entered, false) {
            return true;
        }
        let interval = u64::from(self.scan.restart_interval);
        if interval > 0 && self.at > 0 && self.at.is_multiple_of(interval) {
            let marker = 0xD0 + ((self.at / interval + 7) % 8) as u8;
            self.dc = [0; COMPONENTS];
            return self.bits.pass_marker(marker);
        }
        true
    }

    /// Decodes the present MCU.
    #[inline(always)]
    fn decode<'b>(&mut self, block: impl Fn(usize) -> &'b mut DctBlock) -> bool {
        let mut sound = self.enter();
        for (place, kind) in self.blocks.iter().enumerate() {
            let Some(dc) = read_dc(&mut self.bits, kind.dc) else {
                sound = false;
                break;
            };
            let dc = dc.wrapping_add(self.dc[kind.component]);
            self.dc[kind.component] = dc;
            let block = block(place);
            block[0] = dc;
            if !read_ac::<true>(&mut self.bits, kind.ac, block) {
                sound = false;
                break;
            }
        }
        self.at += 1;
        self.sound &= sound && !self.bits.is_overrun();
        self.sound
    }

    /// Passes the present MCU, keeping the DC values only.
    #[inline(always)]
    fn walk(&mut self) {
        let mut sound = self.enter();
        let mut none = [0; 64];
        for kind in &self.blocks {
            let Some(dc) = read_dc(&mut self.bits, kind.dc) else {
                sound = false;
                break;
            };
            self.dc[kind.component] = dc.wrapping_add(self.dc[kind.component]);
            if !read_ac::<false>(&mut self.bits, kind.ac, &mut none) {
                sound = false;
                break;
            }
        }
        self.at += 1;
        self.sound &= sound && !self.bits.is_overrun();
    }

    /// Walks over the whole scan and notes points at which it can be entered. `None` where it is not sound.
    pub(crate) fn index(mut self, mut index: IndexBuilder) -> Option<IndexBuilder> {
        let total = u64::from(self.scan.mcus_per_row) * u64::from(self.scan.mcu_rows);
        while self.at < total && self.sound {
            if index.is_point(self.scan, self.at) {
                if !self.enter() {
                    return None;
                }
                self.entered = true;
                index.push(Point::new(self.bits.place()?, self.scan.data_offset, self.dc)?);
            }
            self.walk();
        }
        self.is_sound().then_some(index)
    }
}

/// The next DC difference; `None` for bits that are no code.
#[inline(always)]
fn read_dc(bits: &mut BitReader<'_>, table: &DcTable) -> Option<i16> {
    bits.fill();
    let (length, difference) = table.whole(bits.peek(16));
    if length > 0 {
        bits.skip(length);
        return Some(difference);
    }
    let (length, size) = table.find(bits.peek(16))?;
    bits.skip(length);
    Some(extend(bits.take(size), size) as i16)
}

/// Reads the AC coefficients of a block, into `block` where they are kept. `false` for bits that are no code, or too many
/// coefficients.
#[inline(always)]
fn read_ac<const KEEP: bool>(reader: &mut BitReader<'_>, table: &AcTable, block: &mut DctBlock) -> bool {
    let mut keep = |place: usize, value: i16| {
        if KEEP {
            block[usize::from(NATURAL[place & 63])] = value;
        }
    };
    // A local copy stays in registers.
    let mut bits = *reader;
    let mut last = 0;
    let sound = 'block: loop {
        bits.fill();
        for _ in 0..LOOKS_PER_FILL {
            let look = bits.peek(LOOK_BITS) as usize;
            let pair = table.pair(look);
            let next = last + pair.advance();
            // A block that is full ends without a code: what follows then belongs to the next one.
            if next < 63 {
                bits.skip(pair.length());
                // The second first: where there is only one, the first is written over it.
                keep(next, pair.second_value());
                keep(last + pair.first_advance(), pair.first_value());
                last = next;
                continue;
            }
            if let Some(advance) = pair.end_advance().filter(|advance| last + advance < 63) {
                bits.skip(pair.length());
                if advance > 0 {
                    keep(last + advance, pair.second_value());
                    keep(last + pair.first_advance(), pair.first_value());
                }
                break 'block true;
            }
            bits.fill();
            match step(&mut bits, table, look) {
                Step::Value(advance, value) => {
                    last += advance;
                    keep(last, value);
                }
                Step::Zeroes => last += 16,
                Step::End => break 'block true,
                Step::Bad => break 'block false,
            }
            if last >= 63 {
                break 'block last == 63;
            }
            break;
        }
    };
    *reader = bits;
    sound
}

/// What one code means.
enum Step {
    /// Places from the coefficient before, and the value.
    Value(usize, i16),
    Zeroes,
    End,
    Bad,
}

/// Takes one code with its value; `look` are the bits at its front.
#[inline(always)]
fn step(bits: &mut BitReader<'_>, table: &AcTable, look: usize) -> Step {
    let entry = table.entry(look);
    bits.skip(entry.length());
    match entry.kind() {
        0 => Step::Value(entry.advance(), entry.value()),
        END_OF_BLOCK => Step::End,
        ZEROES => Step::Zeroes,
        CODE_ONLY => {
            let size = entry.value() as u32;
            Step::Value(entry.advance(), extend(bits.take(size), size) as i16)
        }
        _ => {
            let Some((length, symbol)) = table.long(bits.peek(16)) else { return Step::Bad };
            bits.skip(length);
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            match (size, run) {
                (0, 15) => Step::Zeroes,
                (0, _) => Step::End,
                _ => Step::Value(run + 1, extend(bits.take(size), size) as i16),
            }
        }
    }
}
