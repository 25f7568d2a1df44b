//! The bytes of the log: a header, then frames.
//!
//! Header: 8 bytes magic, format version (u32, little-endian). Frame: length of the body (u32), CRC-32C of length and body
//! (u32), body. Body: a mark, then parts, each its kind (u8), its length (u32) and its bytes. What is written together is
//! one frame, so that a write which was cut short by a crash is gone as a whole.

use protobuf::Message;
use raft::eraftpb::{Entry, HardState, Snapshot};

use crate::members::MemberId;
use crate::persisted::{LogWrite, PersistedState};

const MAGIC: &[u8; 8] = b"FEEDLOG\n";
const VERSION: u32 = 3;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 12;
const FRAME_HEADER_BYTES: usize = 8;
/// How every body begins.
const MARK: &[u8] = &[0xFE, 0xED];
/// Entries of a whole log in one frame.
const FRAME_ENTRIES: usize = 1024;

const ID: u8 = 1;
const HARD_STATE: u8 = 2;
const SNAPSHOT: u8 = 3;
const ENTRY: u8 = 4;
/// How many bytes of the file were written before it became the log: none of them can be torn.
const WHOLE: u8 = 5;
/// What follows was written behind what precedes, in the same write.
const NEXT: u8 = 6;

pub(super) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// What a file's first bytes are.
pub(super) enum FileHeader {
    /// A log of this release.
    Ours,
    /// The beginning of a header whose write was cut short: the log was never used.
    Torn,
    /// Something else: one clause.
    Foreign(String),
}

pub(super) fn read_start(bytes: &[u8]) -> FileHeader {
    let header = header();
    if bytes.len() < HEADER_BYTES {
        return if header.starts_with(bytes) {
            FileHeader::Torn
        } else {
            FileHeader::Foreign("it begins otherwise".into())
        };
    }
    if bytes[..8] != *MAGIC {
        return FileHeader::Foreign("it begins otherwise".to_owned());
    }
    let version = word(bytes, 8);
    if version != VERSION {
        return FileHeader::Foreign(format!(
            "its format is version {version}, this release reads version {VERSION}"
        ));
    }
    FileHeader::Ours
}

/// A frame that is being put together.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        bytes.extend_from_slice(MARK);
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

/// The frame of what is appended together, one write after the other.
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

/// A log that holds no more than whose it is.
pub(super) fn empty(id: MemberId) -> Result<Vec<u8>, String> {
    begin(id, &[])
}

/// A whole log.
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

/// Header and first frame, and what follows.
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

/// What a log holds.
#[derive(Default)]
pub(super) struct LogContents {
    /// `None` where the write of a new log was cut short.
    pub(super) id: Option<MemberId>,
    pub(super) stored: PersistedState,
    /// End of the last whole frame; what follows was cut short by a crash.
    pub(super) end: usize,
    /// Bytes that were written before the file became the log.
    whole: u64,
}

/// A damaged frame.
pub(super) struct CorruptFrame {
    pub(super) offset: usize,
    pub(super) what: String,
}

/// Reads all frames. What a crash cut short at the end is left out; anything else that is damaged is an error.
pub(super) fn read_all(bytes: &[u8]) -> Result<LogContents, CorruptFrame> {
    let mut contents = LogContents::default();
    let mut offset = HEADER_BYTES;
    while offset < bytes.len() {
        let Some(body) = body_at(bytes, offset) else {
            if let Some(later) = (offset + 1..bytes.len()).find(|&later| body_at(bytes, later).is_some()) {
                let what = format!("its checksum is wrong, and intact records follow from byte {later}");
                return Err(CorruptFrame { offset, what });
            }
            break;
        };
        read_body(&body[MARK.len()..], &mut contents).map_err(|what| CorruptFrame { offset, what })?;
        offset += FRAME_HEADER_BYTES + body.len();
    }
    contents.end = offset.min(bytes.len());
    if (contents.end as u64) < contents.whole {
        let what = format!("the first {} bytes were written at once, and are not all there", contents.whole);
        return Err(CorruptFrame { offset: contents.end, what });
    }
    let damage = |what| CorruptFrame { offset: contents.end, what };
    contents.stored.check().map_err(damage)?;
    Ok(contents)
}

fn read_body(mut parts: &[u8], contents: &mut LogContents) -> Result<(), String> {
    let cut = || "a part of it is cut short".to_owned();
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
                contents.stored.take(LogWrite::Append { number: 0, hard_state: hard_state.take(), entries });
            }
            HARD_STATE => hard_state = Some(read::<HardState>(part)?),
            SNAPSHOT => {
                contents.stored =
                    PersistedState { snapshot: read::<Snapshot>(part)?, ..PersistedState::default() }
            }
            ENTRY => entries.push(read::<Entry>(part)?),
            kind => return Err(format!("it has a part of kind {kind}, which this release does not know")),
        }
        parts = rest;
    }
    contents.stored.take(LogWrite::Append { number: 0, hard_state, entries });
    Ok(())
}

fn read<M: Message>(bytes: &[u8]) -> Result<M, String> {
    M::parse_from_bytes(bytes).map_err(|error| error.to_string())
}

/// The body of the frame at `offset`, if there is an intact one.
fn body_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let body = bytes.get(offset + FRAME_HEADER_BYTES..)?;
    if !body.starts_with(MARK) {
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

/// A log, and the parts of a frame of one, as [`read_anything`] takes them.
#[cfg(feature = "fuzzing")]
pub(super) fn samples(id: MemberId, stored: &PersistedState) -> Result<[Vec<u8>; 2], String> {
    let frame = appended([(Some(&stored.hard_state), &stored.entries[..])])?;
    Ok([whole(id, stored)?, frame[FRAME_HEADER_BYTES + MARK.len()..].to_vec()])
}

/// Reads `bytes` as a log, and as a frame of one whose checksum is right.
#[cfg(feature = "fuzzing")]
pub(super) fn read_anything(bytes: &[u8]) {
    if matches!(read_start(bytes), FileHeader::Ours) {
        drop(read_all(bytes));
    }
    let mut contents = LogContents::default();
    if read_body(bytes, &mut contents).is_ok() {
        // Whether it is sound does not matter; that the check ends does.
        let _ = contents.stored.check();
    }
}
