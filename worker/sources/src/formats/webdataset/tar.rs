//! Parses tar archives. Supports ustar headers, GNU long names, and pax paths and sizes.

use std::ops::Range;

use crate::limits::MAX_MEMBER_NAME_BYTES;
use crate::rows::SplitError;

pub(crate) const HEADER_BYTES: usize = 512;
/// Maximum size of an extension header, which usually contains only a name.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// A parsed header. `bytes` is the size of the body that follows the header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TarEntry {
    /// The end of the archive.
    End,
    /// An extension of the next header. The caller must pass the body to `on_extension`.
    Extension { bytes: u64 },
    /// A regular file.
    Member { name: String, bytes: u64 },
    /// Another entry, such as a directory or a link.
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
    /// The name of the next member, from extension headers.
    name: Option<String>,
    /// The size of the next member, from extension headers.
    bytes: Option<u64>,
}

impl TarReader {
    /// Parses the header at the start of `header`. `remaining_bytes` is the size of the rest of the archive.
    pub(crate) fn on_header(&mut self, header: &[u8], remaining_bytes: u64) -> Result<TarEntry, String> {
        // A block of zeros, which may be truncated, marks the end of the archive.
        if header.iter().take(HEADER_BYTES).all(|&byte| byte == 0) {
            return Ok(TarEntry::End);
        }
        let Some(header) = header.first_chunk::<HEADER_BYTES>() else {
            return Err("the archive is truncated within a header: write the file again".to_owned());
        };
        verify_checksum(header)?;
        self.kind = header[156];
        let is_extension = matches!(self.kind, b'L' | b'K' | b'x' | b'g');
        let bytes = match (self.kind, self.bytes) {
            // Links, directories and devices have no body, even if the header contains a size.
            (b'1'..=b'6', _) => 0,
            (_, Some(bytes)) if !is_extension => bytes,
            _ => parse_number(&header[124..136])?,
        };
        if bytes > remaining_bytes || padded_bytes(bytes) > remaining_bytes {
            return Ok(TarEntry::Truncated { name: self.name.take().unwrap_or_else(|| header_name(header)) });
        }
        if is_extension {
            if bytes > MAX_EXTENSION_BYTES {
                return Err(format!(
                    "an extension header is {bytes} bytes long; the limit is {MAX_EXTENSION_BYTES} bytes: the archive is corrupted"
                ));
            }
            return Ok(TarEntry::Extension { bytes });
        }
        self.bytes = None;
        let name = self.name.take();
        match self.kind {
            b'0' | 0 | b'7' => {
                Ok(TarEntry::Member { name: name.unwrap_or_else(|| header_name(header)), bytes })
            }
            _ => Ok(TarEntry::Skip { bytes }),
        }
    }

    /// Processes the body of the last extension header.
    pub(crate) fn on_extension(&mut self, body: &[u8]) -> Result<(), String> {
        match self.kind {
            b'L' => self.name = Some(check_name_length(parse_text(body))?),
            b'x' => self.on_pax(body)?,
            _ => {}
        }
        Ok(())
    }

    /// Parses pax records of the form `<length> <key>=<value>\n`.
    fn on_pax(&mut self, mut body: &[u8]) -> Result<(), String> {
        let corrupted_error = || "a pax header is invalid: the archive is corrupted".to_owned();
        while !body.is_empty() {
            let space = body.iter().position(|&byte| byte == b' ').ok_or_else(corrupted_error)?;
            let length: usize = std::str::from_utf8(&body[..space])
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(corrupted_error)?;
            let record = body.get(space + 1..length).ok_or_else(corrupted_error)?;
            let record = record.strip_suffix(b"\n").ok_or_else(corrupted_error)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(corrupted_error)?;
            let value = &record[equals + 1..];
            match &record[..equals] {
                b"path" => self.name = Some(check_name_length(String::from_utf8_lossy(value).into_owned())?),
                b"size" => {
                    let digits = std::str::from_utf8(value).map_err(|_| corrupted_error())?;
                    self.bytes = Some(digits.parse().map_err(|_| corrupted_error())?);
                }
                _ => {}
            }
            body = &body[length..];
        }
        Ok(())
    }
}

/// A regular file of an archive in memory.
pub(crate) struct TarMember {
    /// The offset of the first header of the member, which may be an extension header.
    pub(crate) start: usize,
    pub(crate) name: String,
    pub(crate) body: Range<usize>,
}

/// Calls `on_member` for each regular file of the archive.
pub(crate) fn each_member(bytes: &[u8], mut on_member: impl FnMut(TarMember)) -> Result<(), SplitError> {
    let mut tar = TarReader::default();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        let split_error = |reason| SplitError { at, reason };
        let body = at + HEADER_BYTES;
        let body_bytes = match tar.on_header(&bytes[at..], (bytes.len() - at) as u64).map_err(split_error)? {
            TarEntry::End => return Ok(()),
            TarEntry::Truncated { name } => return Err(split_error(truncated(&name))),
            TarEntry::Extension { bytes: length } => {
                tar.on_extension(&bytes[body..body + length as usize]).map_err(split_error)?;
                length
            }
            TarEntry::Skip { bytes: length } => {
                start = at + padded_bytes(length) as usize;
                length
            }
            TarEntry::Member { name, bytes: length } => {
                on_member(TarMember { start, name, body: body..body + length as usize });
                start = at + padded_bytes(length) as usize;
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
    if checksum == Some(byte_sum(header) - byte_sum(&header[148..156]) + 8 * u64::from(b' ')) {
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
    let digits = parse_text(field);
    let digits = digits.trim();
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| corrupted_error()) }
}

fn header_name(header: &[u8; HEADER_BYTES]) -> String {
    let name = parse_text(&header[..100]);
    let is_ustar = &header[257..262] == b"ustar";
    // GNU tar stores timestamps in the prefix field.
    let is_gnu = &header[257..265] == b"ustar  \0";
    let prefix = if is_ustar && !is_gnu { parse_text(&header[345..500]) } else { String::new() };
    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
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

/// Parses a text field, which ends at the first zero byte.
fn parse_text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
