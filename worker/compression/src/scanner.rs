//! Finds positions in compressed data at which decoding can start, without decoding it.
//!
//! Sections between such positions can be decoded at the same time. A position is only probable, because the data of a block may look
//! like the beginning of another one: decoding can start there if the decoder of the data before it reports the same boundary, with
//! the same [`StreamDecoder::continuation`].

use feedline_data::compression::AccessPoint;

#[cfg(doc)]
use crate::StreamDecoder;

/// Finds the positions in one file, in ascending order.
pub trait Scanner: Send {
    /// Scans `input`, the compressed data after everything that earlier calls consumed. The first input begins with the byte that
    /// contains the start of the scanner.
    fn scan(&mut self, input: &[u8]) -> ScanStep;
}

/// The result of one call of [`Scanner::scan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanStep {
    /// Number of bytes of `input` that were consumed. The next input starts after them.
    pub consumed: usize,
    /// Why the call stopped.
    pub event: ScanEvent,
}

/// Why a call of [`Scanner::scan`] stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEvent {
    /// The scanner needs more input. The next input starts with the rest of this one.
    NeedsInput,
    /// A decoder can probably start here.
    Start(ScannedStart),
    /// The scanner finds no more positions: the data after the last one is damaged, or does not contain what a scanner needs.
    Stop,
}

/// A position at which a decoder can probably start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedStart {
    /// The offset in the shard, and the state for [`crate::resume`]. The offset in the content is unknown, and 0.
    pub point: AccessPoint,
    /// The size of the content since the previous position, if the data states it.
    pub content_bytes: Option<u64>,
}

impl ScannedStart {
    pub(crate) fn at_bit(bit_offset: u64, state: Vec<u8>, content_bytes: Option<u64>) -> Self {
        Self { point: AccessPoint { bit_offset, content_offset: 0, state }, content_bytes }
    }
}

/// The position of a scanner in a file.
pub(crate) struct ScanCursor {
    /// The offset of the next input in the file.
    position: u64,
    /// Number of bytes before the next element.
    pub(crate) skipped_bytes: u64,
}

impl ScanCursor {
    /// A cursor at the start of a scanner.
    pub(crate) fn at(start: &AccessPoint) -> Self {
        Self { position: start.bit_offset / 8, skipped_bytes: 0 }
    }
}

/// A scanner of elements that state how many bytes are between them.
pub(crate) trait ElementScanner: Send {
    fn cursor(&mut self) -> &mut ScanCursor;

    /// Scans the element at the start of `rest`, which is at `offset` in the file. Returns the number of its bytes that need not be
    /// scanned again, and the event that ends the call, if there is one.
    fn step(&mut self, rest: &[u8], offset: u64) -> (usize, Option<ScanEvent>);
}

impl<S: ElementScanner> Scanner for S {
    fn scan(&mut self, input: &[u8]) -> ScanStep {
        let start = self.cursor().position;
        let mut consumed = 0;
        let event = loop {
            let cursor = self.cursor();
            let skipped = cursor.skipped_bytes.min((input.len() - consumed) as u64);
            consumed += skipped as usize;
            cursor.skipped_bytes -= skipped;
            if cursor.skipped_bytes > 0 {
                break ScanEvent::NeedsInput;
            }
            let (used, event) = self.step(&input[consumed..], start + consumed as u64);
            consumed += used;
            if let Some(event) = event {
                break event;
            }
        };
        self.cursor().position += consumed as u64;
        ScanStep { consumed, event }
    }
}
