//! Tar headers: ustar, GNU long names, and pax paths and sizes.

use std::ops::Range;

use crate::limits::MAX_MEMBER_NAME_BYTES;
use crate::rows::SplitError;

pub(crate) const HEADER_BYTES: usize = 512;
/// Maximum size of an extension header, which contains a name. A larger header is damaged.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// The meaning of a header. `bytes` is the size of the body that follows the header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TarEntry {
    /// The end of the archive.
    End,
    /// An extension of the next header. The caller passes the body to `on_extension`.
    Extension { bytes: u64 },
    /// A regular file.
    Member { name: String, bytes: u64 },
    /// Another entry, such as a folder or a link.
    Skip { bytes: u64 },
    /// A member that exceeds the end of the archive.
    Truncated { name: String },
}

/// The message about a truncated member.
pub(crate) fn truncated(name: &str) -> String {
    format!("the member `{name}` is truncated: write the file again")
}

/// The size of a header and its body in the archive, with padding.
pub(crate) fn padded(body_bytes: u64) -> u64 {
    HEADER_BYTES as u64 + body_bytes.div_ceil(HEADER_BYTES as u64) * HEADER_BYTES as u64
}

/// Parses headers in order.
#[derive(Debug, Default)]
pub(crate) struct TarReader {
    kind: u8,
    /// The name of the next member from extension headers.
    name: Option<String>,
    bytes: Option<u64>,
}

impl TarReader {
    /// Parses the header at the start of `header`; `left` bytes remain in the archive.
    pub(crate) fn on_header(&mut self, header: &[u8], left: u64) -> Result<TarEntry, String> {
        // Zeros mark the end of the archive, even if they are truncated. Any other header starts with a name.
        if header.iter().take(HEADER_BYTES).all(|&byte| byte == 0) {
            return Ok(TarEntry::End);
        }
        let Some(header) = header.first_chunk::<HEADER_BYTES>() else {
            return Err("the archive is truncated within a header: write the file again".to_owned());
        };
        check_sum(header)?;
        self.kind = header[156];
        let is_extension = matches!(self.kind, b'L' | b'K' | b'x' | b'g');
        let bytes = match (self.kind, self.bytes) {
            // Links, folders and devices have no body, even if the header contains a size.
            (b'1'..=b'6', _) => 0,
            (_, Some(bytes)) if !is_extension => bytes,
            _ => number(&header[124..136])?,
        };
        if bytes > left || padded(bytes) > left {
            return Ok(TarEntry::Truncated { name: self.name.take().unwrap_or_else(|| header_name(header)) });
        }
        if is_extension {
            if bytes > MAX_EXTENSION_BYTES {
                return Err(format!("a header extension of {bytes} bytes: the archive is damaged"));
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
            b'L' => self.name = Some(short(text(body))?),
            b'x' => self.on_pax(body)?,
            _ => {}
        }
        Ok(())
    }

    /// Parses pax records of the form `<length> <key>=<value>\n`.
    fn on_pax(&mut self, mut body: &[u8]) -> Result<(), String> {
        let bad = || "a pax header cannot be read: the archive is damaged".to_owned();
        while !body.is_empty() {
            let space = body.iter().position(|&byte| byte == b' ').ok_or_else(bad)?;
            let length: usize = std::str::from_utf8(&body[..space])
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(bad)?;
            let record = body.get(space + 1..length).ok_or_else(bad)?;
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
            let value = &record[equals + 1..];
            match &record[..equals] {
                b"path" => self.name = Some(short(String::from_utf8_lossy(value).into_owned())?),
                b"size" => {
                    let digits = std::str::from_utf8(value).map_err(|_| bad())?;
                    self.bytes = Some(digits.parse().map_err(|_| bad())?);
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
    /// The offset of the first header, including extension headers.
    pub(crate) start: usize,
    pub(crate) name: String,
    pub(crate) body: Range<usize>,
}

/// Calls `on_member` with every regular file of the archive.
pub(crate) fn each_member(bytes: &[u8], mut on_member: impl FnMut(TarMember)) -> Result<(), SplitError> {
    let mut tar = TarReader::default();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        let bad = |reason| SplitError { at, reason };
        let body = at + HEADER_BYTES;
        let body_bytes = match tar.on_header(&bytes[at..], (bytes.len() - at) as u64).map_err(bad)? {
            TarEntry::End => return Ok(()),
            TarEntry::Truncated { name } => return Err(bad(truncated(&name))),
            TarEntry::Extension { bytes: length } => {
                tar.on_extension(&bytes[body..body + length as usize]).map_err(bad)?;
                length
            }
            TarEntry::Skip { bytes: length } => {
                start = at + padded(length) as usize;
                length
            }
            TarEntry::Member { name, bytes: length } => {
                on_member(TarMember { start, name, body: body..body + length as usize });
                start = at + padded(length) as usize;
                length
            }
        };
        at += padded(body_bytes) as usize;
    }
    Ok(())
}

fn check_sum(header: &[u8; HEADER_BYTES]) -> Result<(), String> {
    let stated = number(&header[148..156]).ok();
    let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
    let stated_bytes: u64 = header[148..156].iter().map(|&byte| u64::from(byte)).sum();
    // The sum is taken with spaces in its own place.
    if stated == Some(sum - stated_bytes + 8 * u64::from(b' ')) {
        return Ok(());
    }
    Err("a header's checksum is wrong: this is not a tar file, or it is damaged".to_owned())
}

/// An octal number, or a base-256 number marked by its top bit.
fn number(field: &[u8]) -> Result<u64, String> {
    let bad = || "a header holds no number where one belongs: the archive is damaged".to_owned();
    if field[0] & 0x80 != 0 {
        let digits = field.iter().skip(1).try_fold(u64::from(field[0] & 0x7f), |value, &byte| {
            value.checked_mul(256)?.checked_add(u64::from(byte))
        });
        return digits.ok_or_else(bad);
    }
    let digits = text(field);
    let digits = digits.trim();
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| bad()) }
}

fn header_name(header: &[u8; HEADER_BYTES]) -> String {
    let name = text(&header[..100]);
    let is_ustar = &header[257..262] == b"ustar";
    // GNU tar puts times where POSIX puts a prefix.
    let is_gnu = &header[257..265] == b"ustar  \0";
    let prefix = if is_ustar && !is_gnu { text(&header[345..500]) } else { String::new() };
    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
}

/// A member's name, unless it is longer than names are.
fn short(name: String) -> Result<String, String> {
    if name.len() <= MAX_MEMBER_NAME_BYTES {
        return Ok(name);
    }
    Err(format!(
        "a member's name has {} bytes, more than {MAX_MEMBER_NAME_BYTES}: the archive is damaged",
        name.len()
    ))
}

/// Text up to the first zero byte.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
