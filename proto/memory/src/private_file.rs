//! A file on a disk that only this process can access. It is written, and then mapped to memory.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Mmap, MmapOptions};

/// The number of files that this process has created.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// A file without a name, of a fixed size. Its disk space is free again when the file and its mapping are dropped, also if the
/// process is killed.
#[derive(Debug)]
pub struct PrivateFile {
    file: File,
    bytes: usize,
}

/// A private file in memory. Nothing writes to it.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl PrivateFile {
    /// Creates a file of `bytes` zero bytes on the disk of a directory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, or is larger than the address space.
    pub fn create(folder: &Path, bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("private-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        // Without a name, no other process can change the file.
        std::fs::remove_file(&path)?;
        file.set_len(bytes)?;
        Ok(Self { file, bytes: length })
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// Returns an error if the bytes exceed the size of the file, or the disk is full.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes as u64) {
            return Err(io::Error::from(ErrorKind::FileTooLarge));
        }
        self.file.write_all_at(bytes, offset)
    }

    /// Maps the file. It cannot be written after that.
    ///
    /// # Errors
    /// Returns an error if the system does not map the file.
    pub fn map(self) -> io::Result<MappedFile> {
        // SAFETY: the file has no name and this value owns its only descriptor, which is closed after this call. So no process can
        // write to the file or shrink it while it is mapped.
        let map = unsafe { MmapOptions::new().len(self.bytes).map(&self.file)? };
        Ok(MappedFile { map })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_has_the_written_bytes_and_no_name() {
        let folder = std::env::temp_dir();
        let file = PrivateFile::create(&folder, 10_000).unwrap();
        file.write_at(&[7; 4_000], 5_000).unwrap();
        file.write_at(&[1], 9_999).unwrap();
        assert!(file.write_at(&[1, 2], 9_999).is_err());
        assert!(file.write_at(&[1], u64::MAX).is_err());
        let prefix = format!("private-{}-", std::process::id());
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.map(|name| name.to_string_lossy().into_owned()).all(|name| !name.starts_with(&prefix)));
        let mapped = file.map().unwrap();
        let bytes = mapped.as_ref();
        assert_eq!((bytes.len(), bytes[4_999], bytes[5_000], bytes[9_999]), (10_000, 0, 7, 1));
    }

    #[test]
    fn a_directory_that_does_not_exist_is_an_error() {
        let missing = std::env::temp_dir().join("feedline-no-such-directory");
        assert_eq!(PrivateFile::create(&missing, 1).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
