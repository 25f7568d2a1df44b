//! Finds the blocks of bzip2 files by their magic numbers. Other data may contain such a number too, with a probability of 2^-48 for
//! each bit.

use feedline_data::compression::AccessPoint;

use super::magic::{BLOCK_MAGIC, END_MAGIC, MAGIC_BITS, find_magic, number_at};
use super::{CRC_BITS, STREAM_HEADER_BITS, parse_state, state};
use crate::scanner::{ScanEvent, ScanStep, ScannedStart, Scanner};

/// Finds the blocks of a bzip2 file.
pub(crate) struct Bzip2Scanner {
    /// The offset of the next input in the file.
    position: u64,
    level: u8,
    /// The combined checksum of the blocks before the current one.
    crc: u32,
    state: ScanState,
}

enum ScanState {
    /// The header of a block at a bit.
    Block(u64),
    /// In a block with this checksum. The search for the next magic continues at this bit.
    InBlock { crc: u32, search_bit: u64 },
    /// The header of a stream at a bit.
    Stream(u64),
}

impl Bzip2Scanner {
    /// Creates a scanner that starts at a block. `None` if the state is invalid.
    pub(crate) fn new(start: &AccessPoint) -> Option<Self> {
        let (level, crc) = parse_state(&start.state)?;
        Some(Self { position: start.bit_offset / 8, level, crc, state: ScanState::Block(start.bit_offset) })
    }

    /// Returns the event that ends the call, if there is one.
    fn step(&mut self, input: &[u8]) -> Option<ScanEvent> {
        let first_bit = self.position * 8;
        let number = |bit: u64, bits| number_at(input, bit - first_bit, bits);
        match self.state {
            ScanState::Block(bit) => {
                let Some(crc) = number(bit + MAGIC_BITS, CRC_BITS) else {
                    return Some(ScanEvent::NeedsInput);
                };
                let search_bit = bit + MAGIC_BITS + CRC_BITS;
                self.state = ScanState::InBlock { crc: crc as u32, search_bit };
                None
            }
            ScanState::InBlock { crc, search_bit } => {
                let Some(bit) = find_magic(input, self.position, search_bit) else {
                    let last_bit = (first_bit + input.len() as u64 * 8).saturating_sub(MAGIC_BITS + 8);
                    self.state = ScanState::InBlock { crc, search_bit: search_bit.max(last_bit) };
                    return Some(ScanEvent::NeedsInput);
                };
                self.state = ScanState::InBlock { crc, search_bit: bit };
                let (Some(magic), Some(next)) = (number(bit, MAGIC_BITS), number(bit + MAGIC_BITS, CRC_BITS))
                else {
                    return Some(ScanEvent::NeedsInput);
                };
                self.crc = self.crc.rotate_left(1) ^ crc;
                match magic {
                    END_MAGIC if next as u32 == self.crc => {
                        let end = (bit + MAGIC_BITS + CRC_BITS).next_multiple_of(8);
                        self.state = ScanState::Stream(end);
                        None
                    }
                    END_MAGIC => Some(ScanEvent::Stop),
                    _ => Some(self.start(bit)),
                }
            }
            ScanState::Stream(bit) => {
                let (Some(header), Some(magic)) =
                    (number(bit, STREAM_HEADER_BITS), number(bit + STREAM_HEADER_BITS, MAGIC_BITS))
                else {
                    return Some(ScanEvent::NeedsInput);
                };
                let [b'B', b'Z', b'h', level @ b'1'..=b'9'] = (header as u32).to_be_bytes() else {
                    return Some(ScanEvent::Stop);
                };
                if magic != BLOCK_MAGIC {
                    return Some(ScanEvent::Stop);
                }
                (self.level, self.crc) = (level - b'0', 0);
                Some(self.start(bit + STREAM_HEADER_BITS))
            }
        }
    }

    fn start(&mut self, bit: u64) -> ScanEvent {
        self.state = ScanState::Block(bit);
        ScanEvent::Start(ScannedStart::at_bit(bit, state(self.level, self.crc), None))
    }
}

impl Scanner for Bzip2Scanner {
    fn scan(&mut self, input: &[u8]) -> ScanStep {
        let event = loop {
            if let Some(event) = self.step(input) {
                break event;
            }
        };
        let (ScanState::Block(next) | ScanState::InBlock { search_bit: next, .. } | ScanState::Stream(next)) =
            self.state;
        let end = self.position + input.len() as u64;
        let consumed = ((next / 8).min(end) - self.position) as usize;
        self.position += consumed as u64;
        ScanStep { consumed, event }
    }
}
