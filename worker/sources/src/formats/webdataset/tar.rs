//! Parses tar archives. Supports ustar headers, GNU long names, and pax paths and sizes. Archives may follow each other in a file.

use std::ops::Range;

use super::member_types::{self, MemberType, UnreadableMember};
use crate::limits::MAX_MEMBER_NAME_BYTES;
use crate::rows::SplitError;

pub(crate) const HEADER_BYTES: usize = 512;
/// Maximum size of an extension header, which usually contains only a name.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// The type of a sparse member in GNU's old format. Its header starts a map of the data in the body.
const SPARSE_KIND: u8 = b'S';
/// The byte of a header that says whether the sparse map continues in the next block.
const SPARSE_CONTINUES_IN_HEADER: usize = 482;
/// The same byte in a block of the map.
const SPARSE_CONTINUES_IN_MAP: usize = 504;

/// A parsed header. `bytes` is the size of the body that follows the header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TarEntry {
    /// A block of zeros, which ends the archive. Another archive may follow.
    End,
    /// An extension of the next header. The caller must pass the body to `on_extension`.
    Extension { bytes: u64 },
    /// A header that continues in the next block.
    Continued,
    /// A file, or an entry that should be a file but has no content that can be read, such as a link.
    Member { name: String, bytes: u64, unreadable: Option<UnreadableMember> },
    /// An entry that is never part of a sample, such as a directory.
    Skip { bytes: u64 },
    /// A member whose body extends beyond the end of the archive.
    Truncated { name: String },
}

/// The error message for a truncated member.
pub(crate) fn truncated(name: &str) -> String {
    format!("the member `{name}` is truncated: write the file again")
}

/// The error message for a truncated extension header.
pub(crate) fn truncated_extension() -> String {
    "an extension header is truncated: write the file again".to_owned()
}

/// Size of a header, its body and the padding in the archive.
pub(crate) fn padded_bytes(body_bytes: u64) -> u64 {
    HEADER_BYTES as u64 + body_bytes.div_ceil(HEADER_BYTES as u64) * HEADER_BYTES as u64
}

/// Parses the headers of an archive in order.
#[derive(Debug, Default)]
pub(crate) struct TarReader {
    /// The type flag of the last header.
    kind: u8,
    /// What extension headers say about the next member.
    next: NextMember,
    /// The sparse member whose map continues in the next block: its name and the size of its body.
    continued: Option<(String, u64)>,
    /// Whether the last header was in the archive that a block of zeros ended.
    has_ended: bool,
}

/// The properties of a member from the extension headers before it.
#[derive(Debug, Default, PartialEq, Eq)]
struct NextMember {
    name: Option<String>,
    link_target: Option<String>,
    bytes: Option<u64>,
    is_sparse: bool,
    is_not_utf8: bool,
}

impl TarReader {
    /// Parses the header at the start of `header`. `remaining_bytes` is the size of the rest of the file.
    pub(crate) fn on_header(&mut self, header: &[u8], remaining_bytes: u64) -> Result<TarEntry, String> {
        // The file may end within a block of zeros.
        if self.continued.is_none() && header.iter().take(HEADER_BYTES).all(|&byte| byte == 0) {
            if self.next != NextMember::default() {
                return Err("a member is missing after its extension header: write the file again".to_owned());
            }
            *self = Self { has_ended: true, ..Self::default() };
            return Ok(TarEntry::End);
        }
        let Some(header) = header.first_chunk::<HEADER_BYTES>() else {
            return Err(match self.has_ended {
                true => data_after_end(),
                false => "the archive is truncated within a header: write the file again".to_owned(),
            });
        };
        if let Some((name, bytes)) = self.continued.take() {
            if padded_bytes(bytes) > remaining_bytes {
                return Ok(TarEntry::Truncated { name });
            }
            return Ok(self.on_sparse_map(name, bytes, header[SPARSE_CONTINUES_IN_MAP]));
        }
        verify_checksum(header).map_err(|reason| if self.has_ended { data_after_end() } else { reason })?;
        self.has_ended = false;
        self.kind = header[156];
        let kind = member_types::member_type(self.kind);
        let bytes = match (&kind, self.next.bytes) {
            // Links, directories and devices have no body, even if the header contains a size.
            _ if matches!(self.kind, b'1'..=b'6') => 0,
            (MemberType::Extension, _) | (_, None) => parse_number(&header[124..136])?,
            (_, Some(bytes)) => bytes,
        };
        if bytes > remaining_bytes || padded_bytes(bytes) > remaining_bytes {
            return Ok(TarEntry::Truncated { name: self.member_name(header) });
        }
        if matches!(kind, MemberType::Extension) {
            if bytes > MAX_EXTENSION_BYTES {
                return Err(format!(
                    "an extension header is {bytes} bytes long; the limit is {MAX_EXTENSION_BYTES} bytes: the archive is corrupted"
                ));
            }
            return Ok(TarEntry::Extension { bytes });
        }
        if matches!(kind, MemberType::Ignored) {
            self.next = NextMember::default();
            return Ok(TarEntry::Skip { bytes });
        }
        let name = self.member_name(header);
        let next = std::mem::take(&mut self.next);
        let unreadable = match kind {
            MemberType::Unreadable(reason) => Some(reason),
            MemberType::Link(link) => {
                Some(link(next.link_target.unwrap_or_else(|| text_of(&header[157..257]).0)))
            }
            _ if next.is_sparse => Some(UnreadableMember::Sparse),
            _ if next.is_not_utf8 => Some(UnreadableMember::NameNotUtf8),
            _ => None,
        };
        if self.kind == SPARSE_KIND {
            return Ok(self.on_sparse_map(name, bytes, header[SPARSE_CONTINUES_IN_HEADER]));
        }
        Ok(TarEntry::Member { name, bytes, unreadable })
    }

    /// Continues with the next block of a sparse map if there is one. Otherwise the body of the member follows.
    fn on_sparse_map(&mut self, name: String, bytes: u64, continues: u8) -> TarEntry {
        if continues != 0 {
            self.continued = Some((name, bytes));
            return TarEntry::Continued;
        }
        TarEntry::Member { name, bytes, unreadable: Some(UnreadableMember::Sparse) }
    }

    /// The name of the next member, from the extension headers or from its header.
    fn member_name(&mut self, header: &[u8; HEADER_BYTES]) -> String {
        self.next.name.take().unwrap_or_else(|| {
            let (name, is_utf8) = header_name(header);
            self.next.is_not_utf8 = !is_utf8;
            name
        })
    }

    /// Processes the body of the last extension header.
    pub(crate) fn on_extension(&mut self, body: &[u8]) -> Result<(), String> {
        match self.kind {
            b'L' => self.set_name(body)?,
            b'K' => self.next.link_target = Some(text_of(body).0),
            b'x' | b'X' => self.on_pax(body)?,
            b'g' => check_global_pax(body)?,
            _ => {}
        }
        Ok(())
    }

    fn on_pax(&mut self, body: &[u8]) -> Result<(), String> {
        each_pax_record(body, |key, value| {
            match key {
                // A sparse member has another name in its header and under `path`.
                b"path" if self.next.is_sparse && self.next.name.is_some() => {}
                b"path" | b"GNU.sparse.name" => self.set_name(value)?,
                b"linkpath" => self.next.link_target = Some(text_of(value).0),
                b"size" => {
                    let digits = std::str::from_utf8(value).map_err(|_| invalid_pax())?;
                    self.next.bytes = Some(digits.parse().map_err(|_| invalid_pax())?);
                }
                _ => {}
            }
            self.next.is_sparse |= key.starts_with(b"GNU.sparse.");
            Ok(())
        })
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), String> {
        let (name, is_utf8) = text_of(name);
        self.next.name = Some(check_name_length(name)?);
        self.next.is_not_utf8 = !is_utf8;
        Ok(())
    }
}

/// Rejects global records that would change each member.
fn check_global_pax(body: &[u8]) -> Result<(), String> {
    each_pax_record(body, |key, _| match key {
        b"path" | b"size" | b"linkpath" => Err(format!(
            "a global pax header sets `{}` for all members, which is not supported: write the archive again with \
             `tar --format=gnu`",
            String::from_utf8_lossy(key)
        )),
        _ => Ok(()),
    })
}

/// Parses pax records of the form `<length> <key>=<value>\n`.
fn each_pax_record(
    mut body: &[u8],
    mut on_record: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    while !body.is_empty() {
        let space = body.iter().position(|&byte| byte == b' ').ok_or_else(invalid_pax)?;
        let length: usize = std::str::from_utf8(&body[..space])
            .ok()
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(invalid_pax)?;
        let record = body.get(space + 1..length).ok_or_else(invalid_pax)?;
        let record = record.strip_suffix(b"\n").ok_or_else(invalid_pax)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(invalid_pax)?;
        on_record(&record[..equals], &record[equals + 1..])?;
        body = &body[length..];
    }
    Ok(())
}

fn invalid_pax() -> String {
    "a pax header is invalid: the archive is corrupted".to_owned()
}

fn data_after_end() -> String {
    "data after the end of the archive is not another archive: write the file again".to_owned()
}

/// A member of an archive in memory.
pub(crate) struct TarMember {
    /// The offset of the first header of the member, which may be an extension header.
    pub(crate) start: usize,
    pub(crate) name: String,
    pub(crate) body: Range<usize>,
    pub(crate) unreadable: Option<UnreadableMember>,
    /// Whether the member is the first one after the end of another archive.
    pub(crate) is_after_end: bool,
}

/// Calls `on_member` for each member of the archives.
pub(crate) fn each_member(bytes: &[u8], mut on_member: impl FnMut(TarMember)) -> Result<(), SplitError> {
    let mut tar = TarReader::default();
    let (mut start, mut at, mut is_after_end) = (0, 0, false);
    while at < bytes.len() {
        let split_error = |reason| SplitError { at, reason };
        let body = at + HEADER_BYTES;
        let body_bytes = match tar.on_header(&bytes[at..], (bytes.len() - at) as u64).map_err(split_error)? {
            TarEntry::End => {
                (start, is_after_end) = (body, true);
                0
            }
            TarEntry::Truncated { name } => return Err(split_error(truncated(&name))),
            TarEntry::Continued => 0,
            TarEntry::Extension { bytes: length } => {
                tar.on_extension(&bytes[body..body + length as usize]).map_err(split_error)?;
                length
            }
            TarEntry::Skip { bytes: length } => {
                start = at + padded_bytes(length) as usize;
                length
            }
            TarEntry::Member { name, bytes: length, unreadable } => {
                let body = body..body + length as usize;
                on_member(TarMember { start, name, body, unreadable, is_after_end });
                (start, is_after_end) = (at + padded_bytes(length) as usize, false);
                length
            }
        };
        at += padded_bytes(body_bytes) as usize;
    }
    Ok(())
}

fn verify_checksum(header: &[u8; HEADER_BYTES]) -> Result<(), String> {
    let checksum = parse_number(&header[148..156]).ok();
    let byte_sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    // The checksum is the sum of all bytes, with spaces instead of the checksum field.
    let sum = byte_sum(header) - byte_sum(&header[148..156]) + 8 * u64::from(b' ');
    // Some historic writers add the bytes as signed numbers.
    let negative_bytes =
        || header[..148].iter().chain(&header[156..]).filter(|byte| !byte.is_ascii()).count() as u64;
    if checksum == Some(sum) || checksum.is_some() && checksum == sum.checked_sub(256 * negative_bytes()) {
        return Ok(());
    }
    Err("the checksum of a header does not match: the file is corrupted or not a tar file".to_owned())
}

/// Parses an octal number, or a base-256 number, which has the top bit set.
fn parse_number(field: &[u8]) -> Result<u64, String> {
    let corrupted_error = || "a header contains an invalid number: the archive is corrupted".to_owned();
    if field[0] & 0x80 != 0 {
        let digits = field.iter().skip(1).try_fold(u64::from(field[0] & 0x7f), |value, &byte| {
            value.checked_mul(256)?.checked_add(u64::from(byte))
        });
        return digits.ok_or_else(corrupted_error);
    }
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let digits = std::str::from_utf8(&field[..end]).map_err(|_| corrupted_error())?.trim();
    if digits.starts_with('+') {
        return Err(corrupted_error());
    }
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| corrupted_error()) }
}

/// Returns the name in a header, and whether it is UTF-8.
fn header_name(header: &[u8; HEADER_BYTES]) -> (String, bool) {
    let (name, is_utf8) = text_of(&header[..100]);
    let is_ustar = &header[257..262] == b"ustar";
    // GNU tar stores timestamps in the prefix field.
    let is_gnu = &header[257..265] == b"ustar  \0";
    if !is_ustar || is_gnu {
        return (name, is_utf8);
    }
    let (prefix, is_prefix_utf8) = text_of(&header[345..500]);
    let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
    (name, is_utf8 && is_prefix_utf8)
}

/// Returns the name of a member. Fails if the name is too long.
fn check_name_length(name: String) -> Result<String, String> {
    if name.len() <= MAX_MEMBER_NAME_BYTES {
        return Ok(name);
    }
    Err(format!(
        "a member name is {} bytes long; the limit is {MAX_MEMBER_NAME_BYTES} bytes: the archive is corrupted",
        name.len()
    ))
}

/// Returns a text field, which ends at the first zero byte, and whether it is UTF-8. Other bytes are escaped, so that different
/// fields remain different.
fn text_of(field: &[u8]) -> (String, bool) {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    match std::str::from_utf8(&field[..end]) {
        Ok(text) => (text.to_owned(), true),
        Err(_) => (field[..end].escape_ascii().to_string(), false),
    }
}
