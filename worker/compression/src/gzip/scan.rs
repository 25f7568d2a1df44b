//! Finds the members of gzip files that state their sizes, as those of bgzip do (Sequence Alignment/Map Format Specification,
//! section 4.1).

use feedline_data::compression::AccessPoint;

use super::member::SIZE_FIELD;
use crate::scanner::{ScanEvent, ScanStep, ScannedStart, Scanner};

/// The identification of a member with the flag for an extra field.
const MAGIC: [u8; 4] = [0x1f, 0x8b, 8, 4];
/// The header without the extra field.
const HEADER_BYTES: usize = 12;
const TRAILER_BYTES: usize = 8;

/// Finds the members of a bgzip file.
pub(crate) struct BgzipScanner {
    /// The offset of the next input in the file.
    position: u64,
    /// Whether the scanner has reported the member, or starts here.
    is_reported: bool,
    /// Number of bytes before the member.
    skipped_bytes: usize,
}

impl BgzipScanner {
    /// Creates a scanner that starts at a member.
    pub(crate) fn new(start: &AccessPoint) -> Self {
        Self { position: start.bit_offset / 8, is_reported: true, skipped_bytes: 0 }
    }
}

impl Scanner for BgzipScanner {
    fn scan(&mut self, input: &[u8]) -> ScanStep {
        let mut consumed = 0;
        let event = loop {
            let skipped = self.skipped_bytes.min(input.len() - consumed);
            consumed += skipped;
            self.skipped_bytes -= skipped;
            let rest = &input[consumed..];
            if self.skipped_bytes > 0 || rest.is_empty() {
                break ScanEvent::NeedsInput;
            }
            match member_bytes(rest) {
                Some(Ok(_)) if !self.is_reported => {
                    self.is_reported = true;
                    let offset = self.position + consumed as u64;
                    break ScanEvent::Start(ScannedStart::at_bit(offset * 8, Vec::new(), None));
                }
                Some(Ok(bytes)) => (self.skipped_bytes, self.is_reported) = (bytes, false),
                Some(Err(())) => break ScanEvent::Stop,
                None => break ScanEvent::NeedsInput,
            }
        };
        self.position += consumed as u64;
        ScanStep { consumed, event }
    }
}

/// Returns the size of the member that begins the input, or an error if it does not state it. `None` if the header is incomplete.
fn member_bytes(input: &[u8]) -> Option<Result<usize, ()>> {
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        return Some(Err(()));
    }
    let length = input.get(HEADER_BYTES - 2..HEADER_BYTES)?;
    let end = HEADER_BYTES + usize::from(u16::from_le_bytes([length[0], length[1]]));
    let mut fields = input.get(HEADER_BYTES..end)?;
    while let [first, second, low, high, rest @ ..] = fields {
        let size = usize::from(u16::from_le_bytes([*low, *high]));
        let Some((value, others)) = rest.split_at_checked(size) else { break };
        if [*first, *second, *low, *high] == SIZE_FIELD
            && let [low, high] = value
        {
            let bytes = usize::from(u16::from_le_bytes([*low, *high])) + 1;
            return Some(if bytes > end + TRAILER_BYTES { Ok(bytes) } else { Err(()) });
        }
        fields = others;
    }
    Some(Err(()))
}
