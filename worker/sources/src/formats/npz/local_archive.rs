//! Archives of arrays on a local disk. Members of any size are read as streams.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::CrcReader;
use flate2::read::DeflateDecoder;

use super::zip::{
    CentralDirectory, END_BYTES, END64_BYTES, Entry, LOCAL_BYTES, LOCATOR_BYTES, MAX_COMMENT_BYTES,
    MAX_DIRECTORY_BYTES, data_start, find_directory, parse_end64, parse_entries, truncated,
};

/// Size of the reads of a member.
const READ_BYTES: usize = 1 << 20;

/// A zip archive on a local disk.
pub struct LocalArchive {
    file: File,
    size: u64,
    entries: Vec<Entry>,
}

impl LocalArchive {
    /// Opens an archive, and reads the list of its members.
    ///
    /// # Errors
    /// Returns a message without the path if the file cannot be read, or is not a complete archive.
    pub fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot read the archive: {error}");
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let read = |start: u64, end: u64| {
            let mut bytes = vec![0; (end - start) as usize];
            file.read_exact_at(&mut bytes, start).map_err(failed)?;
            Ok::<_, String>(bytes)
        };
        let tail_start = size.saturating_sub(END_BYTES + MAX_COMMENT_BYTES + LOCATOR_BYTES + END64_BYTES);
        let (start, bytes) = match find_directory(&read(tail_start, size)?, tail_start)? {
            CentralDirectory::At { start, bytes } => (start, bytes),
            CentralDirectory::End64(at) => {
                let end = at.checked_add(END64_BYTES).filter(|end| *end <= size).ok_or_else(truncated)?;
                parse_end64(&read(at, end)?)?
            }
        };
        let end = start.checked_add(bytes).filter(|end| *end <= size).ok_or_else(truncated)?;
        if bytes > MAX_DIRECTORY_BYTES {
            return Err(truncated());
        }
        let entries = parse_entries(&read(start, end)?)?;
        Ok(Self { file, size, entries })
    }

    /// Returns the names of the members.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Opens a member.
    ///
    /// # Errors
    /// Returns a message if there is no such member, or it is damaged.
    pub fn member(&self, name: &str) -> Result<ArchiveMember<'_>, String> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else {
            let names: Vec<&str> = self.names().take(20).collect();
            return Err(format!("there is no member `{name}`: the members are {}", names.join(", ")));
        };
        let header_end = entry.header.checked_add(LOCAL_BYTES).filter(|end| *end <= self.size);
        let mut header = vec![0; (header_end.ok_or_else(truncated)? - entry.header) as usize];
        let read = self.file.read_exact_at(&mut header, entry.header);
        read.map_err(|error| format!("cannot read the archive: {error}"))?;
        let position = data_start(&header, entry.header)?;
        let end = position.checked_add(entry.stored_bytes).filter(|end| *end <= self.size);
        let range = FileRange { file: &self.file, position, end: end.ok_or_else(truncated)? };
        let stored = BufReader::with_capacity(READ_BYTES, range);
        let reader: Box<dyn Read + '_> =
            if entry.is_deflated { Box::new(DeflateDecoder::new(stored)) } else { Box::new(stored) };
        Ok(ArchiveMember { reader: CrcReader::new(reader), rest: entry.size, crc: entry.crc })
    }
}

/// The contents of a member. The last read fails if the checksum does not match.
pub struct ArchiveMember<'a> {
    reader: CrcReader<Box<dyn Read + 'a>>,
    /// The number of bytes that have not been read.
    rest: u64,
    crc: u32,
}

impl Read for ArchiveMember<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.rest.min(buffer.len() as u64) as usize;
        if length == 0 {
            return Ok(0);
        }
        let count = self.reader.read(&mut buffer[..length])?;
        if count == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "a member of the archive is truncated"));
        }
        self.rest -= count as u64;
        if self.rest == 0 && self.reader.crc().sum() != self.crc {
            return Err(io::Error::new(ErrorKind::InvalidData, "the checksum of a member does not match"));
        }
        Ok(count)
    }
}

/// A range of a file.
struct FileRange<'a> {
    file: &'a File,
    position: u64,
    end: u64,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (self.end - self.position).min(buffer.len() as u64) as usize;
        let count = self.file.read_at(&mut buffer[..length], self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::testdata;

    fn read(archive: &LocalArchive, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        archive.member(name).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn stored_deflated_and_64_bit_archives_have_equal_members() {
        let archive = |name: &str| LocalArchive::open(&testdata(&format!("npz/{name}"))).unwrap();
        let stored = archive("stored.npz");
        let names: Vec<&str> = stored.names().collect();
        assert!(names.contains(&"i8.npy"), "{names:?}");
        for other in [archive("deflated.npz"), archive("zip64.npz")] {
            for name in &names {
                assert_eq!(read(&stored, name), read(&other, name), "{name}");
            }
        }
        assert!(read(&stored, "i8.npy").starts_with(b"\x93NUMPY"));
        let error = stored.member("x.npy").err().unwrap();
        assert!(error.starts_with("there is no member `x.npy`: the members are "), "{error}");
    }

    #[test]
    fn damaged_archives_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let bytes = std::fs::read(testdata("npz/stored.npz")).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(LocalArchive::open(&path).err().unwrap().contains("not a complete zip archive"));
        std::fs::write(&path, b"").unwrap();
        assert!(LocalArchive::open(&path).err().unwrap().contains("not a complete zip archive"));
        let mut flipped = bytes.clone();
        // The data of the first member.
        flipped[150] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        let archive = LocalArchive::open(&path).unwrap();
        let first = archive.names().next().unwrap().to_owned();
        let error = archive.member(&first).unwrap().read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
