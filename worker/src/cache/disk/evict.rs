//! Evicts rows from disk in whole segments, the oldest segment first.

use std::io;

use super::folders::segment_files;
use super::index::lock;
use super::shared::Shared;
use super::write::SegmentWriter;
use crate::cache::rows::Prefix;

impl SegmentWriter {
    /// Evicts segments until `bytes` bytes are free for rows of the prefix `wanted`. Returns whether they are free.
    pub(super) fn make_room(&mut self, wanted: Prefix, bytes: u64) -> io::Result<bool> {
        loop {
            let evictions = lock(&self.shared.evictions);
            let (missing_bytes, victim) = (evictions.missing_bytes(bytes), evictions.next_victim(wanted));
            drop(evictions);
            if missing_bytes == 0 {
                return Ok(true);
            }
            let Some(victim) = victim else { return Ok(false) };
            // Close the open segment, so that later rows are written to a new segment.
            self.open_segments.remove(&victim);
            self.shared.evict_segments(victim, missing_bytes)?;
        }
    }
}

impl Shared {
    /// Deletes segments of a prefix until `bytes` bytes are freed or no segment is left. After the last segment, also
    /// deletes the directory.
    fn evict_segments(&self, prefix: Prefix, bytes: u64) -> io::Result<()> {
        let folder = self.folder(prefix);
        let mut freed = 0;
        for file in segment_files(&folder)? {
            if freed >= bytes {
                return Ok(());
            }
            // Readers that have opened the file can still read it.
            if let Err(error) = std::fs::remove_file(&file.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            freed += file.bytes;
            let mut evictions = lock(&self.evictions);
            evictions.count_evicted(prefix, file.bytes);
            evictions.remove(prefix, file.bytes);
            drop(evictions);
            if let Some(index) = self.index(prefix) {
                index.remove_segment(&file.path);
            }
        }
        lock(&self.prefixes).remove(&prefix);
        lock(&self.evictions).clear(prefix);
        // Fails if the directory contains user files, which must not be deleted.
        let _ = std::fs::remove_dir(&folder);
        Ok(())
    }
}
