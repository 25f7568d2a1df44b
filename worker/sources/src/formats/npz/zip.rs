//! Zip archives with stored and deflated members, also with the 64-bit extensions.

use std::io::Read;
use std::ops::Range;

use bytes::Bytes;

use super::super::decompress::{MAX_DECOMPRESSED_BYTES, off_runtime};
use super::super::npy::header::MAX_HEADER_END;
use crate::error::SourceError;
use crate::object::{BufferSpan, Object};

/// Size of the record at the end of an archive, without its comment.
pub(super) const END_BYTES: u64 = 22;
pub(super) const MAX_COMMENT_BYTES: u64 = 0xffff;
pub(super) const LOCATOR_BYTES: u64 = 20;
pub(super) const END64_BYTES: u64 = 56;
const ENTRY_BYTES: usize = 46;
pub(super) const LOCAL_BYTES: u64 = 30;
/// Maximum size of the list of members.
pub(super) const MAX_DIRECTORY_BYTES: u64 = 64 << 20;
/// Maximum number of members of an archive. Each member needs a request.
const MAX_MEMBERS: usize = 4_096;
/// Size of the read of a compressed member that contains the header of its array.
const START_BYTES: u64 = 64 << 10;

/// Fuzzing does not verify the checksums, because changed bytes never have the right checksum. cargo-fuzz sets this cfg, so that no
/// other build omits the check.
const VERIFIES_CHECKSUMS: bool = !cfg!(fuzzing);

/// A member of an archive.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ZipMember {
    /// The byte offset of the data.
    pub(super) start: u64,
    pub(super) stored_bytes: u64,
    /// The decompressed size.
    pub(super) size: u64,
    pub(super) crc: u32,
    pub(super) is_deflated: bool,
}

impl ZipMember {
    /// The number of bytes at the start of the member that contain the header of its array.
    fn start_bytes(&self) -> u64 {
        self.stored_bytes.min(if self.is_deflated { START_BYTES } else { MAX_HEADER_END })
    }

    /// Decompresses the start of the member.
    fn decompress_start(&self, bytes: Bytes) -> Bytes {
        if !self.is_deflated {
            return bytes;
        }
        let mut start = vec![0; MAX_HEADER_END.min(self.size) as usize];
        let mut decoder = flate2::read::DeflateDecoder::new(&bytes[..]);
        let mut filled = 0;
        // The end of the part is an error, which does not matter if the header is complete.
        while let Ok(count @ 1..) = decoder.read(&mut start[filled..]) {
            filled += count;
        }
        start.truncate(filled);
        start.into()
    }

    /// Reads and decompresses the member, and verifies its checksum.
    pub(super) async fn read(&self, object: &Object) -> Result<Bytes, SourceError> {
        let corrupt = |reason: String| SourceError::corrupt(object.shard(), self.start, reason);
        let bytes = object.read(self.start..self.start + self.stored_bytes).await?;
        let (size, is_deflated) = (self.size, self.is_deflated);
        let expected = self.crc;
        let inflate = move || {
            let bytes = if is_deflated { inflate(&bytes, size)? } else { bytes };
            if VERIFIES_CHECKSUMS && crc32fast::hash(&bytes) != expected {
                return Err("the checksum of an array does not match: write the file again".to_owned());
            }
            Ok(bytes)
        };
        off_runtime(size, inflate).await.flatten().map_err(corrupt)
    }
}

fn inflate(bytes: &[u8], size: u64) -> Result<Bytes, String> {
    if size > MAX_DECOMPRESSED_BYTES {
        return Err(format!(
            "an array has {size} bytes; the limit is {MAX_DECOMPRESSED_BYTES} bytes: save it with `np.savez`"
        ));
    }
    let mut whole = Vec::with_capacity(size as usize + 1);
    let mut decoder = flate2::read::DeflateDecoder::new(bytes).take(size + 1);
    decoder.read_to_end(&mut whole).map_err(|error| format!("an array cannot be decompressed: {error}"))?;
    if whole.len() as u64 != size {
        return Err(format!("an array does not have the expected {size} bytes: write the file again"));
    }
    Ok(whole.into())
}

/// Returns the list of members of an archive.
pub(super) async fn entries(object: &Object) -> Result<Vec<Entry>, SourceError> {
    let shard = object.shard();
    let corrupt = |reason: String| SourceError::corrupt(shard, 0, reason);
    let size = object.size_bytes();
    let tail_start = size.saturating_sub(END_BYTES + MAX_COMMENT_BYTES + LOCATOR_BYTES + END64_BYTES);
    let tail = object.read(tail_start..size).await?;
    let directory = find_directory(&tail, tail_start).map_err(corrupt)?;
    let directory = match directory {
        CentralDirectory::At { start, bytes } => (start, bytes),
        CentralDirectory::End64(at) => {
            let end = at.checked_add(END64_BYTES).filter(|end| *end <= size).ok_or_else(truncated);
            let record = object.read(at..end.map_err(corrupt)?).await?;
            parse_end64(&record).map_err(corrupt)?
        }
    };
    let (start, bytes) = directory;
    let end = start.checked_add(bytes).filter(|end| *end <= size).ok_or_else(truncated).map_err(corrupt)?;
    if bytes > MAX_DIRECTORY_BYTES {
        return Err(corrupt(format!(
            "the list of members has {bytes} bytes; the limit is {MAX_DIRECTORY_BYTES} bytes"
        )));
    }
    parse_entries(&object.read(start..end).await?).map_err(corrupt)
}

/// Reads the starts of members, which are sorted by their position. Returns the members, and at least [`MAX_HEADER_END`] bytes of
/// each or the whole member. Members that are close to each other share a request.
pub(super) async fn members(
    object: &Object,
    entries: &[&Entry],
) -> Result<Vec<(ZipMember, Bytes)>, SourceError> {
    let corrupt = |reason: String| SourceError::corrupt(object.shard(), 0, reason);
    let size = object.size_bytes();
    let headers =
        entries.iter().map(|entry| entry.header..entry.header.saturating_add(LOCAL_BYTES).min(size));
    let headers = read_disjoint(object, headers.collect()).await?;
    let mut members = Vec::with_capacity(entries.len());
    for (entry, header) in entries.iter().zip(headers) {
        let start = data_start(&header, entry.header).map_err(corrupt)?;
        if start.checked_add(entry.stored_bytes).is_none_or(|end| end > size) {
            return Err(corrupt(truncated()));
        }
        let Entry { stored_bytes, size, crc, is_deflated, .. } = **entry;
        members.push(ZipMember { start, stored_bytes, size, crc, is_deflated });
    }
    let starts = members.iter().map(|member| member.start..member.start + member.start_bytes());
    let starts = read_disjoint(object, starts.collect()).await?;
    let with_start = |(member, bytes): (ZipMember, Bytes)| {
        let start = member.decompress_start(bytes);
        (member, start)
    };
    Ok(members.into_iter().zip(starts).map(with_start).collect())
}

/// Reads ranges of a file. Fails if they are not ascending, because members of an archive do not overlap.
async fn read_disjoint(object: &Object, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>, SourceError> {
    let is_valid = |range: &Range<u64>| range.start <= range.end;
    if !ranges.iter().all(is_valid) || ranges.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(SourceError::corrupt(object.shard(), 0, truncated()));
    }
    let (buffers, spans) = object.read_ranges(&ranges).await?;
    let part = |span: BufferSpan| buffers[span.buffer].slice(span.start..span.start + span.len);
    Ok(spans.into_iter().map(part).collect())
}

pub(super) fn truncated() -> String {
    "the file is not a complete zip archive: check `source.format`, or write the file again".to_owned()
}

/// Where the list of members is.
pub(super) enum CentralDirectory {
    At {
        start: u64,
        bytes: u64,
    },
    /// The byte offset of the 64-bit record, which contains the place of the list.
    End64(u64),
}

pub(super) fn find_directory(tail: &[u8], tail_start: u64) -> Result<CentralDirectory, String> {
    let is_end = |at: &usize| {
        let rest = &tail[*at..];
        rest.starts_with(b"PK\x05\x06") && rest.len() as u64 == END_BYTES + u64::from(u16_at(rest, 20))
    };
    let last = (tail.len() as u64).checked_sub(END_BYTES).ok_or_else(truncated)? as usize;
    let at = (0..=last).rev().find(is_end).ok_or_else(truncated)?;
    let (entries, bytes, start) = (u16_at(&tail[at..], 10), u32_at(&tail[at..], 12), u32_at(&tail[at..], 16));
    if entries != u16::MAX && bytes != u32::MAX && start != u32::MAX {
        return Ok(CentralDirectory::At { start: u64::from(start), bytes: u64::from(bytes) });
    }
    let locator = at.checked_sub(LOCATOR_BYTES as usize).map(|start| &tail[start..at]);
    let locator = locator.filter(|locator| locator.starts_with(b"PK\x06\x07")).ok_or_else(truncated)?;
    let record = u64_at(locator, 8);
    if record > tail_start + at as u64 {
        return Err(truncated());
    }
    Ok(CentralDirectory::End64(record))
}

/// Returns the byte offset and the size of the list of members.
pub(super) fn parse_end64(record: &[u8]) -> Result<(u64, u64), String> {
    if !record.starts_with(b"PK\x06\x06") {
        return Err(truncated());
    }
    Ok((u64_at(record, 48), u64_at(record, 40)))
}

/// An entry of the list of members.
pub(super) struct Entry {
    pub(super) name: String,
    /// The byte offset of the header before the data.
    pub(super) header: u64,
    pub(super) stored_bytes: u64,
    pub(super) size: u64,
    pub(super) crc: u32,
    pub(super) is_deflated: bool,
}

pub(super) fn parse_entries(mut rest: &[u8]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (fixed, after) = rest.split_at_checked(ENTRY_BYTES).ok_or_else(truncated)?;
        if !fixed.starts_with(b"PK\x01\x02") {
            return Err(truncated());
        }
        let lengths = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
        let (name, after) = after.split_at_checked(lengths[0]).ok_or_else(truncated)?;
        let (extra, after) = after.split_at_checked(lengths[1]).ok_or_else(truncated)?;
        rest = after.get(lengths[2]..).ok_or_else(truncated)?;
        entries.push(parse_entry(fixed, name, extra)?);
        if entries.len() > MAX_MEMBERS {
            return Err(format!("the archive has more than {MAX_MEMBERS} members: write several files"));
        }
    }
    Ok(entries)
}

fn parse_entry(fixed: &[u8], name: &[u8], extra: &[u8]) -> Result<Entry, String> {
    let name = String::from_utf8_lossy(name).into_owned();
    if u16_at(fixed, 8) & 1 != 0 {
        return Err(format!("the member `{name}` is encrypted: write the file without a password"));
    }
    let is_deflated = match u16_at(fixed, 10) {
        0 => false,
        8 => true,
        other => {
            return Err(format!(
                "the member `{name}` has the unsupported compression {other}: write it with NumPy"
            ));
        }
    };
    let mut wide = zip64_values(extra);
    let mut number = |at: usize| match u32_at(fixed, at) {
        u32::MAX => wide.next().ok_or_else(truncated),
        small => Ok(u64::from(small)),
    };
    let size = number(24)?;
    let stored_bytes = number(20)?;
    let header = number(42)?;
    if !is_deflated && size != stored_bytes {
        return Err(format!("the sizes of the member `{name}` differ: write the file again"));
    }
    Ok(Entry { name, header, stored_bytes, size, crc: u32_at(fixed, 16), is_deflated })
}

/// The 64-bit numbers of the extra field.
fn zip64_values(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut values = Vec::new();
    while extra.len() >= 4 {
        let (kind, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let body = extra[4..].get(..length).unwrap_or_default();
        if kind == 1 {
            values = body.chunks_exact(8).map(|value| u64_at(value, 0)).collect();
        }
        extra = extra.get(4 + length..).unwrap_or_default();
    }
    values.into_iter()
}

/// Returns the byte offset of the data behind a local header at `at`.
pub(super) fn data_start(header: &[u8], at: u64) -> Result<u64, String> {
    if header.len() as u64 != LOCAL_BYTES || !header.starts_with(b"PK\x03\x04") {
        return Err(truncated());
    }
    let variable = u64::from(u16_at(header, 26)) + u64::from(u16_at(header, 28));
    at.checked_add(LOCAL_BYTES + variable).ok_or_else(truncated)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
