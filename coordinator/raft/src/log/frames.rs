//! The format of the log file: a header, then frames.
//!
//! Header: 8 bytes magic, format version (u32, little-endian). Frame: length of the body (u32), CRC-32C of length and body
//! (u32), body. Body: a marker, then parts, each with its kind (u8), length (u32) and bytes. A write is one frame, so a write that
//! was torn by a crash is dropped as a whole.

use protobuf::Message;
use raft::eraftpb::{Entry, HardState, Snapshot};

use crate::members::MemberId;
use crate::persisted::{LogWrite, PersistedState};

const MAGIC: &[u8; 8] = b"FEEDLOG\n";
const VERSION: u32 = 3;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 12;
const FRAME_HEADER_BYTES: usize = 8;
/// The first bytes of each body.
const MARKER: &[u8] = &[0xFE, 0xED];
/// Most entries in one frame of a new log.
const FRAME_ENTRIES: usize = 1024;

const ID: u8 = 1;
const HARD_STATE: u8 = 2;
const SNAPSHOT: u8 = 3;
const ENTRY: u8 = 4;
/// The number of bytes that were written before the file became the log. None of them can be torn.
const WHOLE: u8 = 5;
/// Separates two appends in one frame.
const NEXT: u8 = 6;

pub(super) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// The kind of a file by its header.
pub(super) enum FileHeader {
    /// A log of this release.
    Ours,
    /// An incomplete header: the log was never used.
    Torn,
    /// Another file: one clause.
    Foreign(String),
}

pub(super) fn read_start(bytes: &[u8]) -> FileHeader {
    let header = header();
    if bytes.len() < HEADER_BYTES {
        return if header.starts_with(bytes) {
            FileHeader::Torn
        } else {
            FileHeader::Foreign("its header is not that of a log of Feedline".into())
        };
    }
    if bytes[..8] != *MAGIC {
        return FileHeader::Foreign("its header is not that of a log of Feedline".to_owned());
    }
    let version = word(bytes, 8);
    if version != VERSION {
        return FileHeader::Foreign(format!(
            "it has format version {version}, and this release reads version {VERSION}"
        ));
    }
    FileHeader::Ours
}

/// A frame under construction.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        bytes.extend_from_slice(MARKER);
        Self(bytes)
    }

    fn part(&mut self, kind: u8, bytes: &[u8]) -> Result<(), String> {
        let len = u32::try_from(bytes.len()).map_err(|_| "a part of more than 4 GiB")?;
        self.0.push(kind);
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn message(&mut self, kind: u8, message: &impl Message) -> Result<(), String> {
        self.part(kind, &message.write_to_bytes().map_err(|error| error.to_string())?)
    }

    fn finish(self) -> Result<Vec<u8>, String> {
        let mut bytes = self.0;
        let len =
            u32::try_from(bytes.len() - FRAME_HEADER_BYTES).map_err(|_| "a frame of more than 4 GiB")?;
        let check = checksum(len, &bytes[FRAME_HEADER_BYTES..]);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        Ok(bytes)
    }
}

/// One frame with several appends, in order.
pub(super) fn appended<'a>(
    writes: impl IntoIterator<Item = (Option<&'a HardState>, &'a [Entry])>,
) -> Result<Vec<u8>, String> {
    let mut frame = Frame::new();
    for (place, (hard_state, entries)) in writes.into_iter().enumerate() {
        if place > 0 {
            frame.part(NEXT, &[])?;
        }
        if let Some(hard_state) = hard_state {
            frame.message(HARD_STATE, hard_state)?;
        }
        for entry in entries {
            frame.message(ENTRY, entry)?;
        }
    }
    frame.finish()
}

/// A log with only the id of its member.
pub(super) fn empty(id: MemberId) -> Result<Vec<u8>, String> {
    begin(id, &[])
}

/// A complete log.
pub(super) fn whole(id: MemberId, stored: &PersistedState) -> Result<Vec<u8>, String> {
    let mut frame = Frame::new();
    frame.message(SNAPSHOT, &stored.snapshot)?;
    frame.message(HARD_STATE, &stored.hard_state)?;
    let mut rest = frame.finish()?;
    for entries in stored.entries.chunks(FRAME_ENTRIES) {
        rest.extend(appended([(None, entries)])?);
    }
    begin(id, &rest)
}

/// Header and first frame, then the rest.
fn begin(id: MemberId, rest: &[u8]) -> Result<Vec<u8>, String> {
    let first = |whole: u64| {
        let mut frame = Frame::new();
        frame.part(ID, &id.get().to_le_bytes())?;
        frame.part(WHOLE, &whole.to_le_bytes())?;
        frame.finish()
    };
    let whole = HEADER_BYTES + first(0)?.len() + rest.len();
    Ok([&header()[..], &first(whole as u64)?, rest].concat())
}

/// The contents of a log.
#[derive(Default)]
pub(super) struct LogContents {
    /// `None` for a new log with a torn first write.
    pub(super) id: Option<MemberId>,
    pub(super) stored: PersistedState,
    /// End of the last complete frame. A torn frame may follow.
    pub(super) end: usize,
    /// The number of bytes that were written before the file became the log.
    whole: u64,
}

/// A damaged frame.
pub(super) struct CorruptFrame {
    pub(super) offset: usize,
    pub(super) what: String,
}

/// Decodes all frames. A torn frame at the end is dropped; other damage is an error.
pub(super) fn read_all(bytes: &[u8]) -> Result<LogContents, CorruptFrame> {
    let mut contents = LogContents::default();
    let mut offset = HEADER_BYTES;
    while offset < bytes.len() {
        let Some(body) = body_at(bytes, offset) else {
            if let Some(later) = (offset + 1..bytes.len()).find(|&later| body_at(bytes, later).is_some()) {
                let what = format!("its checksum is wrong, and intact frames follow from byte {later}");
                return Err(CorruptFrame { offset, what });
            }
            break;
        };
        read_body(&body[MARKER.len()..], &mut contents).map_err(|what| CorruptFrame { offset, what })?;
        offset += FRAME_HEADER_BYTES + body.len();
    }
    contents.end = offset.min(bytes.len());
    if (contents.end as u64) < contents.whole {
        let what = format!("the first {} bytes must be complete, and some are missing", contents.whole);
        return Err(CorruptFrame { offset: contents.end, what });
    }
    let damage = |what| CorruptFrame { offset: contents.end, what };
    contents.stored.check().map_err(damage)?;
    Ok(contents)
}

fn read_body(mut parts: &[u8], contents: &mut LogContents) -> Result<(), String> {
    let cut = || "a part of it is truncated".to_owned();
    let (mut hard_state, mut entries) = (None, Vec::new());
    while let Some((kind, rest)) = parts.split_first() {
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(cut)?;
        match *kind {
            ID => {
                let number = part.try_into().map(u64::from_le_bytes).map_err(|_| cut())?;
                contents.id = MemberId::new(number);
            }
            WHOLE => contents.whole = part.try_into().map(u64::from_le_bytes).map_err(|_| cut())?,
            NEXT => {
                let entries = std::mem::take(&mut entries);
                contents.stored.apply(LogWrite::Append { number: 0, hard_state: hard_state.take(), entries });
            }
            HARD_STATE => hard_state = Some(read::<HardState>(part)?),
            SNAPSHOT => {
                contents.stored =
                    PersistedState { snapshot: read::<Snapshot>(part)?, ..PersistedState::default() }
            }
            ENTRY => entries.push(read::<Entry>(part)?),
            kind => return Err(format!("it has a section of unknown kind {kind}")),
        }
        parts = rest;
    }
    contents.stored.apply(LogWrite::Append { number: 0, hard_state, entries });
    Ok(())
}

fn read<M: Message>(bytes: &[u8]) -> Result<M, String> {
    M::parse_from_bytes(bytes).map_err(|error| error.to_string())
}

/// The body of the frame at `offset`, if the frame is intact.
fn body_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let body = bytes.get(offset + FRAME_HEADER_BYTES..)?;
    if !body.starts_with(MARKER) {
        return None;
    }
    let len = word(bytes, offset);
    let body = body.get(..len as usize)?;
    (checksum(len, body) == word(bytes, offset + 4)).then_some(body)
}

fn checksum(len: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&len.to_le_bytes()), body)
}

fn word(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// A log, and the parts of one of its frames, for [`read_anything`].
#[cfg(feature = "fuzzing")]
pub(super) fn samples(id: MemberId, stored: &PersistedState) -> Result<[Vec<u8>; 2], String> {
    let frame = appended([(Some(&stored.hard_state), &stored.entries[..])])?;
    Ok([whole(id, stored)?, frame[FRAME_HEADER_BYTES + MARKER.len()..].to_vec()])
}

/// Decodes `bytes` as a log, and as a frame with a correct checksum.
#[cfg(feature = "fuzzing")]
pub(super) fn read_anything(bytes: &[u8]) {
    if matches!(read_start(bytes), FileHeader::Ours) {
        drop(read_all(bytes));
    }
    let mut contents = LogContents::default();
    if read_body(bytes, &mut contents).is_ok() {
        // The check must end, with or without an error.
        let _ = contents.stored.check();
    }
}
