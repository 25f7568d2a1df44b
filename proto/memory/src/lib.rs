//! Regions of memory that two processes share: the one that made a region writes it, the other only reads.
//!
//! A region is a sealed memfd. Its size is fixed, so no access can lie beyond its end; and nobody but its maker can
//! write to it, since the seal refuses every further writable mapping. Who may read what when is not known here: that is
//! agreed upon by the processes (`feedline-proto`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

/// A region, as the process sees it that made it.
#[derive(Debug)]
pub struct WritableRegion {
    map: MmapRaw,
    file: File,
}

impl WritableRegion {
    /// Makes a region of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// When the system has no memory for it, or does not know memfd and its seals (Linux before 5.1).
    pub fn create(bytes: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("feedline", flags)?);
        file.set_len(bytes as u64)?;
        // Before the seal: it is the only writable mapping that there will ever be.
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        rustix::fs::fcntl_add_seals(&file, seals() | SealFlags::SEAL)?;
        Ok(Self { map, file })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` to its start; `false`, and nothing is written, when they do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.map.len() {
            return false;
        }
        // SAFETY: the mapping is `len` bytes long, of which `bytes.len()` were checked above; its file cannot shrink.
        // `bytes` cannot overlap with it: this process holds no reference into the mapping, since only this function
        // touches it, and `&mut self` makes it the only writer. Other processes map it without the right to write.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr(), bytes.len()) };
        true
    }
}

/// The descriptor that another process opens it by.
impl AsFd for WritableRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A region, as another process sees it.
#[derive(Debug)]
pub struct ReadableRegion {
    map: MmapRaw,
}

impl ReadableRegion {
    /// Maps a region that another process made.
    ///
    /// # Errors
    /// When the descriptor is no sealed region, or there is no room for the mapping.
    pub fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let file = File::from(descriptor);
        // Without these seals its maker could cut it, and reading would be a fault.
        if !rustix::fs::fcntl_get_seals(&file)?.contains(seals()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory is not sealed"));
        }
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let map = MmapOptions::new().len(bytes).populate().map_raw_read_only(&file)?;
        Ok(Self { map })
    }

    /// The first `bytes` bytes; `None` when it has fewer. The caller has been told by the region's maker that these
    /// bytes stay as they are until it lets go of them.
    pub fn bytes(&self, bytes: usize) -> Option<&[u8]> {
        if bytes > self.map.len() {
            return None;
        }
        // SAFETY: the mapping is readable, at least `bytes` long and as long-lived as `self`; its file is sealed and
        // cannot shrink under it. Nobody writes while the slice is in use: this process cannot, and the region's maker,
        // the only process that can, does not before it is told that the bytes are no longer read.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr(), bytes) })
    }
}

/// Seals that a reader relies on.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(region: &WritableRegion) -> ReadableRegion {
        ReadableRegion::open(region.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut region = WritableRegion::create(1 << 16).unwrap();
        let reader = reader(&region);
        assert!(region.write(b"batch"));
        assert_eq!(reader.bytes(5), Some(&b"batch"[..]));
        assert_eq!(reader.bytes(1 << 16).map(<[u8]>::len), Some(1 << 16));
        assert_eq!(reader.bytes((1 << 16) + 1), None);
        assert!(!region.write(&vec![0; (1 << 16) + 1]), "no byte more than it has");
        assert_eq!((region.len(), region.is_empty()), (1 << 16, false));
    }

    #[test]
    fn a_reader_outlives_the_maker() {
        let mut region = WritableRegion::create(4096).unwrap();
        assert!(region.write(&[7; 4096]));
        let reader = reader(&region);
        drop(region);
        assert_eq!(reader.bytes(4096), Some(&[7; 4096][..]));
    }

    #[test]
    fn nobody_else_can_write_or_resize() {
        let region = WritableRegion::create(4096).unwrap();
        let file = File::from(region.as_fd().try_clone_to_owned().unwrap());
        assert!(MmapOptions::new().len(4096).map_raw(&file).is_err(), "no second writable mapping");
        assert!(rustix::io::write(&file, b"x").is_err());
        assert!(file.set_len(1).is_err() && file.set_len(8192).is_err());
    }

    #[test]
    fn what_is_not_sealed_is_refused() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(ReadableRegion::open(file).is_err());
    }
}
