//! Memory shared by a worker and one function process. The process maps the memory. The worker accesses it only by system
//! calls that copy, so the process cannot harm the worker by changing or truncating the memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::MemfdFlags;

/// Alignment of buffers in bytes.
const ALIGNMENT: u64 = 64;

/// A shared memory region.
#[derive(Debug)]
pub(crate) struct SharedRegion {
    file: File,
    /// Size of the region in bytes, as set by this side.
    bytes: u64,
    /// End of the data written since the region was last cleared.
    end: u64,
}

impl SharedRegion {
    /// Creates an empty region.
    pub(crate) fn create() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("feedline-function", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, bytes: 0, end: 0 })
    }

    /// Discards the data, so that the next write starts at offset 0.
    pub(crate) fn clear(&mut self) {
        self.end = 0;
    }

    /// Returns the size of the region in bytes, at least 1, because an empty region cannot be mapped.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.max(1)
    }

    /// Appends a buffer and returns its offset.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.end.next_multiple_of(ALIGNMENT);
        self.end = at + bytes.len() as u64;
        if self.end > self.bytes {
            // The region never shrinks, because the process may still have it mapped.
            self.bytes = self.end.next_power_of_two().max(1 << 16);
            self.file.set_len(self.bytes)?;
        }
        self.file.write_all_at(bytes, at)?;
        Ok(at)
    }

    /// Reads data at an offset.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    /// Returns the current size of the region, which the process may have changed.
    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the allocated bytes, which exclude pages that were never written; 0 if unknown.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.blocks() * 512)
    }
}

/// The descriptor that the process uses to map the region.
impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_buffers_are_aligned_and_read_back() {
        let mut region = SharedRegion::create().unwrap();
        let offsets: Vec<u64> =
            [&[1; 5][..], &[2; 100_000], &[], &[3]].map(|bytes| region.push(bytes).unwrap()).into();
        assert!(offsets.iter().all(|at| at % 64 == 0) && offsets.is_sorted(), "{offsets:?}");
        let mut read = [0; 1];
        region.read(offsets[3], &mut read).unwrap();
        assert_eq!(read, [3]);
        assert!(region.read(region.len(), &mut read).is_err(), "a read after the end fails");
        region.clear();
        assert_eq!(region.push(b"again").unwrap(), 0);
    }
}
