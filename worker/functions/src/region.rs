//! Memory that a worker and one function process share. The process maps it; the worker reads and writes it by calls that
//! copy, so nothing that the process does to it can harm the worker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::MemfdFlags;

/// Buffers begin at multiples of this.
const ALIGNMENT: u64 = 64;

/// A region.
#[derive(Debug)]
pub(crate) struct SharedRegion {
    file: File,
    /// Bytes that it has, as far as this side made it grow.
    bytes: u64,
    /// End of what was written since it was last cleared.
    end: u64,
}

impl SharedRegion {
    /// An empty one.
    pub(crate) fn create() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("feedline-function", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, bytes: 0, end: 0 })
    }

    /// What is written from now on lies at its start.
    pub(crate) fn clear(&mut self) {
        self.end = 0;
    }

    /// Bytes up to the end of what was written, at least one: nothing cannot be mapped.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.max(1)
    }

    /// Writes a buffer behind the others and returns where it lies.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.end.next_multiple_of(ALIGNMENT);
        self.end = at + bytes.len() as u64;
        if self.end > self.bytes {
            // It only grows: the process may still look at what it had.
            self.bytes = self.end.next_power_of_two().max(1 << 16);
            self.file.set_len(self.bytes)?;
        }
        self.file.write_all_at(bytes, at)?;
        Ok(at)
    }

    /// Copies what the process wrote at this place.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    /// Bytes that it has as the process made it.
    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Bytes of memory that it takes: of what was never written to there is none. 0 where the system does not tell.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.blocks() * 512)
    }
}

/// The descriptor that the process maps it by.
impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_aligned_behind_each_other_and_are_read_as_written() {
        let mut region = SharedRegion::create().unwrap();
        let places: Vec<u64> =
            [&[1; 5][..], &[2; 100_000], &[], &[3]].map(|bytes| region.push(bytes).unwrap()).into();
        assert!(places.iter().all(|at| at % 64 == 0) && places.is_sorted(), "{places:?}");
        let mut read = [0; 1];
        region.read(places[3], &mut read).unwrap();
        assert_eq!(read, [3]);
        assert!(region.read(region.len(), &mut read).is_err(), "nothing lies behind its end");
        region.clear();
        assert_eq!(region.push(b"again").unwrap(), 0);
    }
}
