//! The bytes of the log: a header, then a frame for each commit.
//!
//! Header: 8 bytes magic, format version (u32, little-endian). Frame: length of the body (u32), CRC-32C of length and
//! body (u32), body: the JSON list of the commit's records. One frame for one commit, so that a commit which was cut
//! short by a crash is gone as a whole.

use feedline_core::cluster::records::Record;

const MAGIC: &[u8; 8] = b"FEEDLOG\n";
const VERSION: u32 = 1;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 12;
const FRAME_HEADER_BYTES: usize = 8;
/// How every body begins: lists of records are never empty.
const BODY_START: &[u8] = b"[{";
/// Records of a snapshot in one frame.
const SNAPSHOT_FRAME_RECORDS: usize = 1024;

pub(super) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// What a file's first bytes are.
pub(super) enum Start {
    /// A log of this release.
    Ours,
    /// The beginning of a header whose write was cut short: the log was never used.
    Torn,
    /// Something else: one clause.
    Foreign(String),
}

pub(super) fn read_start(bytes: &[u8]) -> Start {
    let header = header();
    if bytes.len() < HEADER_BYTES {
        return if header.starts_with(bytes) {
            Start::Torn
        } else {
            Start::Foreign("it begins otherwise".into())
        };
    }
    if bytes[..8] != *MAGIC {
        return Start::Foreign("it begins otherwise".to_owned());
    }
    let version = word(bytes, 8);
    if version != VERSION {
        return Start::Foreign(format!(
            "its format is version {version}, this release reads version {VERSION}"
        ));
    }
    Start::Ours
}

/// The frame of one commit.
pub(super) fn frame(records: &[Record]) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    serde_json::to_writer(&mut bytes, records).map_err(|error| error.to_string())?;
    let len = u32::try_from(bytes.len() - FRAME_HEADER_BYTES).map_err(|_| "a commit of more than 4 GiB")?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    let check = checksum(len, &bytes[FRAME_HEADER_BYTES..]);
    bytes[4..8].copy_from_slice(&check.to_le_bytes());
    Ok(bytes)
}

/// A whole log that holds a snapshot.
pub(super) fn snapshot(records: &[Record]) -> Result<Vec<u8>, String> {
    let mut bytes = header().to_vec();
    for part in records.chunks(SNAPSHOT_FRAME_RECORDS) {
        bytes.extend(frame(part)?);
    }
    Ok(bytes)
}

/// What a log holds.
pub(super) struct Contents {
    pub(super) records: Vec<Record>,
    /// End of the last whole frame; what follows was cut short by a crash.
    pub(super) end: usize,
}

/// A damaged frame.
pub(super) struct Damage {
    pub(super) offset: usize,
    pub(super) what: String,
}

/// Reads all frames. What a crash cut short at the end is left out; anything else that is damaged is an error.
pub(super) fn read_all(bytes: &[u8]) -> Result<Contents, Damage> {
    let mut records = Vec::new();
    let mut offset = HEADER_BYTES;
    while offset < bytes.len() {
        let Some(body) = body_at(bytes, offset) else {
            if let Some(later) = (offset + 1..bytes.len()).find(|&later| body_at(bytes, later).is_some()) {
                let what = format!("its checksum is wrong, and intact records follow from byte {later}");
                return Err(Damage { offset, what });
            }
            break;
        };
        let commit: Vec<Record> =
            serde_json::from_slice(body).map_err(|error| Damage { offset, what: error.to_string() })?;
        records.extend(commit);
        offset += FRAME_HEADER_BYTES + body.len();
    }
    Ok(Contents { records, end: offset.min(bytes.len()) })
}

/// The body of the frame at `offset`, if there is an intact one.
fn body_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let body = bytes.get(offset + FRAME_HEADER_BYTES..)?;
    if !body.starts_with(BODY_START) {
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
