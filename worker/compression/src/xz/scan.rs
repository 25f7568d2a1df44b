//! Finds the blocks of xz files by the sizes of their LZMA2 chunks, and verifies the index of each stream.

use feedline_data::compression::AccessPoint;

use super::header::{STREAM_HEADER_BYTES, check_bytes, chunk, parse_stream_header};
use super::index::{IndexParser, Sums};
use super::{parse_state, state};
use crate::scanner::{ElementScanner, ScanCursor, ScanEvent, ScannedStart};

/// Finds the blocks of an xz file.
pub(crate) struct XzScanner {
    cursor: ScanCursor,
    check: u8,
    sums: Sums,
    state: ScanState,
    /// The content since the last position.
    content_bytes: u64,
}

enum ScanState {
    /// A block or the index. `is_reported` states that the scanner has reported the block, or that it starts here.
    Block {
        is_reported: bool,
    },
    Chunk(BlockSizes),
    Index(IndexParser),
    Stream,
}

/// The sizes of the parts of a block.
#[derive(Clone, Copy)]
struct BlockSizes {
    header: u64,
    compressed: u64,
    content: u64,
}

impl XzScanner {
    /// Creates a scanner that starts at a block. `None` if the state is invalid.
    pub(crate) fn new(start: &AccessPoint) -> Option<Self> {
        let (check, sums) = parse_state(&start.state)?;
        Some(Self {
            cursor: ScanCursor::at(start),
            check,
            sums: sums?,
            state: ScanState::Block { is_reported: true },
            content_bytes: 0,
        })
    }
}

impl ElementScanner for XzScanner {
    fn cursor(&mut self) -> &mut ScanCursor {
        &mut self.cursor
    }

    fn step(&mut self, rest: &[u8], offset: u64) -> (usize, Option<ScanEvent>) {
        const NEEDS_INPUT: (usize, Option<ScanEvent>) = (0, Some(ScanEvent::NeedsInput));
        match &mut self.state {
            ScanState::Block { is_reported } => {
                let Some(&size) = rest.first() else { return NEEDS_INPUT };
                if size == 0 {
                    self.state = ScanState::Index(IndexParser::default());
                    return (0, None);
                }
                let header = (u64::from(size) + 1) * 4;
                if (rest.len() as u64) < header {
                    return NEEDS_INPUT;
                }
                if !*is_reported {
                    *is_reported = true;
                    let content_bytes = Some(std::mem::take(&mut self.content_bytes));
                    let start =
                        ScannedStart::at_bit(offset * 8, state(self.check, &self.sums), content_bytes);
                    return (0, Some(ScanEvent::Start(start)));
                }
                self.cursor.skipped_bytes = header;
                self.state = ScanState::Chunk(BlockSizes { header, compressed: 0, content: 0 });
            }
            ScanState::Chunk(sizes) => {
                let Some(chunk) = chunk(rest) else { return NEEDS_INPUT };
                let Ok(chunk) = chunk else { return (0, Some(ScanEvent::Stop)) };
                sizes.compressed += chunk.bytes;
                sizes.content += chunk.content_bytes;
                self.cursor.skipped_bytes = chunk.bytes;
                if chunk.is_end {
                    let sizes = *sizes;
                    self.cursor.skipped_bytes += sizes.compressed.next_multiple_of(4) - sizes.compressed;
                    self.cursor.skipped_bytes += check_bytes(self.check);
                    self.sums.add(sizes.header + sizes.compressed + check_bytes(self.check), sizes.content);
                    self.content_bytes += sizes.content;
                    self.state = ScanState::Block { is_reported: false };
                }
            }
            ScanState::Index(parser) => {
                let Ok((used, is_end)) = parser.parse(rest, self.check, Some(&self.sums)) else {
                    return (0, Some(ScanEvent::Stop));
                };
                if !is_end {
                    return (used, Some(ScanEvent::NeedsInput));
                }
                self.state = ScanState::Stream;
                return (used, None);
            }
            ScanState::Stream => {
                if let [0, 0, 0, 0, ..] = rest {
                    return (4, None);
                }
                let Some(header) = rest.first_chunk::<STREAM_HEADER_BYTES>() else { return NEEDS_INPUT };
                let Ok(check) = parse_stream_header(header) else { return (0, Some(ScanEvent::Stop)) };
                (self.check, self.sums) = (check, Sums::default());
                self.state = ScanState::Block { is_reported: false };
                return (STREAM_HEADER_BYTES, None);
            }
        }
        (0, None)
    }
}
