//! Finds the frames of Zstandard files by the sizes of their blocks.

use feedline_data::compression::AccessPoint;

use super::{FRAME_MAGIC, FrameHeader, SKIPPABLE_HEADER_BYTES, SKIPPABLE_MAGIC};
use crate::scanner::{ElementScanner, ScanCursor, ScanEvent, ScannedStart};

const BLOCK_HEADER_BYTES: u64 = 3;
const CHECKSUM_BYTES: u64 = 4;

/// Finds the frames of a Zstandard file.
pub(crate) struct ZstdScanner {
    cursor: ScanCursor,
    state: ScanState,
    /// The size of the content of the last frame, if its header states it.
    content_bytes: Option<u64>,
}

enum ScanState {
    /// A frame. `is_reported` states that the scanner has reported it, or that it starts here.
    Frame { is_reported: bool },
    /// A block in a frame.
    Block { has_checksum: bool },
}

impl ZstdScanner {
    /// Creates a scanner that starts at a frame.
    pub(crate) fn new(start: &AccessPoint) -> Self {
        let state = ScanState::Frame { is_reported: true };
        Self { cursor: ScanCursor::at(start), state, content_bytes: None }
    }

    fn scan_block(&mut self, rest: &[u8], has_checksum: bool) -> Option<ScanEvent> {
        let Some(&[low, middle, high]) = rest.first_chunk() else {
            return Some(ScanEvent::NeedsInput);
        };
        let fields = u32::from_le_bytes([low, middle, high, 0]);
        let (is_last, kind, size) = (fields & 1 == 1, fields >> 1 & 3, u64::from(fields >> 3));
        self.cursor.skipped_bytes = BLOCK_HEADER_BYTES
            + match kind {
                // One byte, which is repeated.
                1 => 1,
                3 => return Some(ScanEvent::Stop),
                _ => size,
            };
        if is_last {
            self.cursor.skipped_bytes += if has_checksum { CHECKSUM_BYTES } else { 0 };
            self.state = ScanState::Frame { is_reported: false };
        }
        None
    }

    fn scan_frame(&mut self, rest: &[u8], offset: u64, is_reported: bool) -> Option<ScanEvent> {
        let Some((magic, header)) = rest.split_first_chunk::<4>() else { return Some(ScanEvent::NeedsInput) };
        let magic = u32::from_le_bytes(*magic);
        if magic & !0xf == SKIPPABLE_MAGIC {
            let Some(size) = header.first_chunk::<4>() else { return Some(ScanEvent::NeedsInput) };
            self.cursor.skipped_bytes = SKIPPABLE_HEADER_BYTES as u64 + u64::from(u32::from_le_bytes(*size));
            return None;
        }
        if magic != FRAME_MAGIC {
            return Some(ScanEvent::Stop);
        }
        let Some(header) = FrameHeader::parse(header) else { return Some(ScanEvent::NeedsInput) };
        if header.check().is_err() {
            return Some(ScanEvent::Stop);
        }
        if !is_reported {
            self.state = ScanState::Frame { is_reported: true };
            let start = ScannedStart::at_bit(offset * 8, Vec::new(), self.content_bytes);
            return Some(ScanEvent::Start(start));
        }
        self.content_bytes = header.content_bytes;
        self.cursor.skipped_bytes = 4 + header.bytes as u64;
        self.state = ScanState::Block { has_checksum: header.has_checksum };
        None
    }
}

impl ElementScanner for ZstdScanner {
    fn cursor(&mut self) -> &mut ScanCursor {
        &mut self.cursor
    }

    fn step(&mut self, rest: &[u8], offset: u64) -> (usize, Option<ScanEvent>) {
        let event = match self.state {
            ScanState::Frame { is_reported } => self.scan_frame(rest, offset, is_reported),
            ScanState::Block { has_checksum } => self.scan_block(rest, has_checksum),
        };
        (0, event)
    }
}
