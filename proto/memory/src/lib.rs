//! Shared memory regions between two processes, and files of one process that are mapped to memory. The process that creates a
//! region writes to it, and the other process only reads.
//!
//! A region is a sealed memfd. Its size is fixed, so no access can exceed its end. Only its creator can write to it, because
//! the seal prevents further writable mappings. The protocol in `feedline-proto` defines when a process may read.

mod private_file;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

pub use self::private_file::{MappedFile, PrivateFile};

/// A region in the process that created it.
#[derive(Debug)]
pub struct WritableRegion {
    map: MmapRaw,
    file: File,
}

impl WritableRegion {
    /// Creates a region of `bytes` zero bytes.
    ///
    /// # Errors
    /// Returns an error if memory allocation fails, or if the system does not support memfd with these seals (Linux before
    /// 5.1).
    pub fn create(bytes: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("feedline", flags)?);
        file.set_len(bytes as u64)?;
        // Map the region before sealing it: this is its only writable mapping.
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        rustix::fs::fcntl_add_seals(&file, required_seals() | SealFlags::SEAL)?;
        Ok(Self { map, file })
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` to the start of the region. Returns `false` without writing if they do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.map.len() {
            return false;
        }
        // SAFETY: the mapping is at least `bytes.len()` long, as checked above, and its file cannot shrink. `bytes` does not
        // overlap with the mapping, because only this function accesses the mapping in this process. `&mut self` makes
        // this call the only writer, and other processes map the region read-only.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr(), bytes.len()) };
        true
    }
}

/// The descriptor that another process uses to open the region.
impl AsFd for WritableRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A region that another process created.
#[derive(Debug)]
pub struct ReadableRegion {
    map: MmapRaw,
}

impl ReadableRegion {
    /// Maps a region that another process created.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a sealed region, or if the region cannot be mapped.
    pub fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let file = File::from(descriptor);
        // Without these seals, the creator could truncate the region, and reads would raise SIGBUS.
        if !rustix::fs::fcntl_get_seals(&file)?.contains(required_seals()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the descriptor is not a sealed memory region",
            ));
        }
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let map = MmapOptions::new().len(bytes).populate().map_raw_read_only(&file)?;
        Ok(Self { map })
    }

    /// Returns the first `bytes` bytes, or `None` if the region is smaller. The creator of the region must guarantee that these
    /// bytes do not change until the caller reports that it has finished reading.
    pub fn bytes(&self, bytes: usize) -> Option<&[u8]> {
        if bytes > self.map.len() {
            return None;
        }
        // SAFETY: the mapping is readable, at least `bytes` long, and valid as long as `self`. Its file is sealed and cannot
        // shrink. No process writes while the slice is in use: this process cannot, and the creator, the only process that
        // can, does not write until it learns that the bytes are no longer read.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr(), bytes) })
    }
}

/// Returns the seals that a reader requires.
fn required_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(region: &WritableRegion) -> ReadableRegion {
        ReadableRegion::open(region.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn written_bytes_are_read_back() {
        let mut region = WritableRegion::create(1 << 16).unwrap();
        let reader = reader(&region);
        assert!(region.write(b"batch"));
        assert_eq!(reader.bytes(5), Some(&b"batch"[..]));
        assert_eq!(reader.bytes(1 << 16).map(<[u8]>::len), Some(1 << 16));
        assert_eq!(reader.bytes((1 << 16) + 1), None);
        assert!(!region.write(&vec![0; (1 << 16) + 1]), "a write beyond the size fails");
        assert_eq!((region.len(), region.is_empty()), (1 << 16, false));
    }

    #[test]
    fn a_reader_outlives_the_creator() {
        let mut region = WritableRegion::create(4096).unwrap();
        assert!(region.write(&[7; 4096]));
        let reader = reader(&region);
        drop(region);
        assert_eq!(reader.bytes(4096), Some(&[7; 4096][..]));
    }

    #[test]
    fn other_processes_can_neither_write_nor_resize() {
        let region = WritableRegion::create(4096).unwrap();
        let file = File::from(region.as_fd().try_clone_to_owned().unwrap());
        assert!(MmapOptions::new().len(4096).map_raw(&file).is_err(), "a second writable mapping fails");
        assert!(rustix::io::write(&file, b"x").is_err());
        assert!(file.set_len(1).is_err() && file.set_len(8192).is_err());
    }

    #[test]
    fn an_unsealed_descriptor_is_rejected() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(ReadableRegion::open(file).is_err());
    }
}
