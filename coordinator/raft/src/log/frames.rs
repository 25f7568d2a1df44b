//! The format of the log file: a header, then frames.
//!
//! Header: 8 bytes magic, format version (u32, little-endian). Frame: length of the body (u32), CRC-32C of length and body
//! (u32), body. Body: a marker, then parts, each with a kind (u8), a length (u32) and bytes. Each write is one frame: if a
//! crash interrupts a write, the incomplete write is dropped.

use protobuf::Message;
use raft::eraftpb::{Entry, HardState, Snapshot};

use crate::members::MemberId;
use crate::persisted::{LogWrite, PersistedState};

const MAGIC: &[u8; 8] = b"FEEDLOG\n";
const VERSION: u32 = 3;

/// Size of the header in bytes.
pub(super) const HEADER_BYTES: usize = 12;
const FRAME_HEADER_BYTES: usize = 8;
/// The first bytes of each body.
const BODY_MARKER: &[u8] = &[0xFE, 0xED];
/// Maximum number of entries in a frame of a rewritten log.
const MAX_FRAME_ENTRIES: usize = 1024;

const ID_PART: u8 = 1;
const HARD_STATE_PART: u8 = 2;
const SNAPSHOT_PART: u8 = 3;
const ENTRY_PART: u8 = 4;
/// The number of bytes that were written before the file became the log. These bytes must be complete.
const REQUIRED_BYTES_PART: u8 = 5;
/// Separates two appends in a frame.
const NEXT_APPEND_PART: u8 = 6;

pub(super) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// The kind of a file, according to its header.
pub(super) enum FileHeader {
    /// A log of this release.
    Valid,
    /// A partial header: the log was never used.
    Torn,
    /// Another file. The reason is part of a sentence.
    Foreign(String),
}

pub(super) fn read_header(bytes: &[u8]) -> FileHeader {
    let header = header();
    if bytes.len() < HEADER_BYTES {
        return if header.starts_with(bytes) {
            FileHeader::Torn
        } else {
            FileHeader::Foreign("the file has no Feedline log header".to_owned())
        };
    }
    if bytes[..8] != *MAGIC {
        return FileHeader::Foreign("the file has no Feedline log header".to_owned());
    }
    let version = read_u32(bytes, 8);
    if version != VERSION {
        return FileHeader::Foreign(format!(
            "the log has format version {version}, but this release reads version {VERSION}"
        ));
    }
    FileHeader::Valid
}

/// A frame under construction.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        bytes.extend_from_slice(BODY_MARKER);
        Self(bytes)
    }

    fn add_part(&mut self, kind: u8, bytes: &[u8]) -> Result<(), String> {
        let len = u32::try_from(bytes.len()).map_err(|_| "a log record exceeds 4 GiB")?;
        self.0.push(kind);
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn add_message(&mut self, kind: u8, message: &impl Message) -> Result<(), String> {
        self.add_part(kind, &message.write_to_bytes().map_err(|error| error.to_string())?)
    }

    fn finish(self) -> Result<Vec<u8>, String> {
        let mut bytes = self.0;
        let len = u32::try_from(bytes.len() - FRAME_HEADER_BYTES).map_err(|_| "a log frame exceeds 4 GiB")?;
        let check = checksum(len, &bytes[FRAME_HEADER_BYTES..]);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        Ok(bytes)
    }
}

/// Encodes several appends, in order, as one frame.
pub(super) fn encode_appends<'a>(
    writes: impl IntoIterator<Item = (Option<&'a HardState>, &'a [Entry])>,
) -> Result<Vec<u8>, String> {
    let mut frame = Frame::new();
    for (index, (hard_state, entries)) in writes.into_iter().enumerate() {
        if index > 0 {
            frame.add_part(NEXT_APPEND_PART, &[])?;
        }
        if let Some(hard_state) = hard_state {
            frame.add_message(HARD_STATE_PART, hard_state)?;
        }
        for entry in entries {
            frame.add_message(ENTRY_PART, entry)?;
        }
    }
    frame.finish()
}

/// Encodes a log without state.
pub(super) fn encode_empty_log(id: MemberId) -> Result<Vec<u8>, String> {
    encode_start(id, &[])
}

/// Encodes a log with the state of a member.
pub(super) fn encode_log(id: MemberId, stored: &PersistedState) -> Result<Vec<u8>, String> {
    let mut frame = Frame::new();
    frame.add_message(SNAPSHOT_PART, &stored.snapshot)?;
    frame.add_message(HARD_STATE_PART, &stored.hard_state)?;
    let mut rest = frame.finish()?;
    for entries in stored.entries.chunks(MAX_FRAME_ENTRIES) {
        rest.extend(encode_appends([(None, entries)])?);
    }
    encode_start(id, &rest)
}

/// Encodes the header and the first frame, and appends `rest`.
fn encode_start(id: MemberId, rest: &[u8]) -> Result<Vec<u8>, String> {
    let first = |required_bytes: u64| {
        let mut frame = Frame::new();
        frame.add_part(ID_PART, &id.get().to_le_bytes())?;
        frame.add_part(REQUIRED_BYTES_PART, &required_bytes.to_le_bytes())?;
        frame.finish()
    };
    let required_bytes = HEADER_BYTES + first(0)?.len() + rest.len();
    Ok([&header()[..], &first(required_bytes as u64)?, rest].concat())
}

/// The contents of a log.
#[derive(Default)]
pub(super) struct LogContents {
    /// `None` for a new log whose first write was interrupted.
    pub(super) id: Option<MemberId>,
    pub(super) stored: PersistedState,
    /// End of the last complete frame. A partial frame may follow.
    pub(super) end: usize,
    /// The number of bytes that were written before the file became the log.
    required_bytes: u64,
}

/// A corrupted frame.
pub(super) struct CorruptFrame {
    pub(super) offset: usize,
    pub(super) damage: String,
}

/// Decodes all frames. A partial frame at the end is dropped. Any other corruption is an error.
pub(super) fn decode_log(bytes: &[u8]) -> Result<LogContents, CorruptFrame> {
    let mut contents = LogContents::default();
    let mut offset = HEADER_BYTES;
    while offset < bytes.len() {
        let Some(body) = body_at(bytes, offset) else {
            if let Some(later) = (offset + 1..bytes.len()).find(|&later| body_at(bytes, later).is_some()) {
                let damage = format!("frame checksum mismatch, but valid frames follow at byte {later}");
                return Err(CorruptFrame { offset, damage });
            }
            break;
        };
        read_body(&body[BODY_MARKER.len()..], &mut contents)
            .map_err(|damage| CorruptFrame { offset, damage })?;
        offset += FRAME_HEADER_BYTES + body.len();
    }
    contents.end = offset.min(bytes.len());
    if (contents.end as u64) < contents.required_bytes {
        let damage =
            format!("the file is truncated: its first {} bytes must be complete", contents.required_bytes);
        return Err(CorruptFrame { offset: contents.end, damage });
    }
    contents.stored.check().map_err(|damage| CorruptFrame { offset: contents.end, damage })?;
    Ok(contents)
}

fn read_body(mut parts: &[u8], contents: &mut LogContents) -> Result<(), String> {
    let truncated = || "a record in the frame is truncated".to_owned();
    let (mut hard_state, mut entries) = (None, Vec::new());
    while let Some((kind, rest)) = parts.split_first() {
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(truncated)?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(truncated)?;
        match *kind {
            ID_PART => {
                let number = part.try_into().map(u64::from_le_bytes).map_err(|_| truncated())?;
                contents.id = MemberId::new(number);
            }
            REQUIRED_BYTES_PART => {
                contents.required_bytes = part.try_into().map(u64::from_le_bytes).map_err(|_| truncated())?
            }
            NEXT_APPEND_PART => {
                let entries = std::mem::take(&mut entries);
                contents.stored.apply(LogWrite::Append { number: 0, hard_state: hard_state.take(), entries });
            }
            HARD_STATE_PART => hard_state = Some(parse::<HardState>(part)?),
            SNAPSHOT_PART => {
                contents.stored =
                    PersistedState { snapshot: parse::<Snapshot>(part)?, ..PersistedState::default() }
            }
            ENTRY_PART => entries.push(parse::<Entry>(part)?),
            kind => return Err(format!("the frame contains a record of unknown kind {kind}")),
        }
        parts = rest;
    }
    contents.stored.apply(LogWrite::Append { number: 0, hard_state, entries });
    Ok(())
}

fn parse<M: Message>(bytes: &[u8]) -> Result<M, String> {
    M::parse_from_bytes(bytes).map_err(|error| error.to_string())
}

/// Returns the body of the frame at `offset`, if the frame is intact.
fn body_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let body = bytes.get(offset + FRAME_HEADER_BYTES..)?;
    if !body.starts_with(BODY_MARKER) {
        return None;
    }
    let len = read_u32(bytes, offset);
    let body = body.get(..len as usize)?;
    (checksum(len, body) == read_u32(bytes, offset + 4)).then_some(body)
}

fn checksum(len: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&len.to_le_bytes()), body)
}

fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// Returns a log, and the body of one of its frames, as seeds for [`read_anything`].
pub(super) fn samples(id: MemberId, stored: &PersistedState) -> Result<[Vec<u8>; 2], String> {
    let frame = encode_appends([(Some(&stored.hard_state), &stored.entries[..])])?;
    Ok([encode_log(id, stored)?, frame[FRAME_HEADER_BYTES + BODY_MARKER.len()..].to_vec()])
}

/// Decodes `bytes` as a log, and as the body of a frame.
pub(super) fn read_anything(bytes: &[u8]) {
    if matches!(read_header(bytes), FileHeader::Valid) {
        drop(decode_log(bytes));
    }
    let mut contents = LogContents::default();
    if read_body(bytes, &mut contents).is_ok() {
        // The check may fail, but must not panic or hang.
        let _ = contents.stored.check();
    }
}
