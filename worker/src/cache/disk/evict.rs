//! Eviction of rows on disk: whole segments, the oldest first.

use std::io;

use super::folders::segment_files;
use super::index::lock;
use super::shared::Shared;
use super::write::SegmentWriter;
use crate::cache::rows::Prefix;

impl SegmentWriter {
    /// Deletes segments that can be evicted for rows of a prefix, until this number of bytes is free. Returns whether
    /// it is free.
    pub(super) fn make_room(&mut self, wanted: Prefix, bytes: u64) -> io::Result<bool> {
        loop {
            let room = lock(&self.shared.room);
            let (missing_bytes, victim) = (room.missing_bytes(bytes), room.next_victim(wanted));
            drop(room);
            if missing_bytes == 0 {
                return Ok(true);
            }
            let Some(victim) = victim else { return Ok(false) };
            // The open segment is closed, so later rows go into a new one.
            self.open.remove(&victim);
            self.shared.let_go(victim, missing_bytes)?;
        }
    }
}

impl Shared {
    /// Deletes segments of a prefix until this number of bytes is free or no segment is left. Deletes the folder with
    /// the last segment.
    fn let_go(&self, prefix: Prefix, bytes: u64) -> io::Result<()> {
        let folder = self.folder(prefix);
        let mut freed = 0;
        for file in segment_files(&folder)? {
            if freed >= bytes {
                return Ok(());
            }
            // Readers with an open file may finish.
            if let Err(error) = std::fs::remove_file(&file.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            freed += file.bytes;
            lock(&self.room).remove(prefix, file.bytes);
            if let Some(kept) = self.kept(prefix) {
                kept.forget(&file.path);
            }
        }
        lock(&self.prefixes).remove(&prefix);
        lock(&self.room).clear(prefix);
        // Other files in the folder do not belong to the cache.
        let _ = std::fs::remove_dir(&folder);
        Ok(())
    }
}
