//! Eviction of rows on disk: whole segments, the oldest first.

use std::io;

use super::folders::segment_files;
use super::index::lock;
use super::shared::Shared;
use super::write::SegmentWriter;
use crate::cache::rows::Prefix;

impl SegmentWriter {
    /// Deletes segments that give way to rows of a prefix until this number of bytes is free. Returns whether it is.
    pub(super) fn make_room(&mut self, wanted: Prefix, bytes: u64) -> io::Result<bool> {
        loop {
            let room = lock(&self.shared.room);
            let (missing_bytes, victim) = (room.missing_bytes(bytes), room.next_victim(wanted));
            drop(room);
            if missing_bytes == 0 {
                return Ok(true);
            }
            let Some(victim) = victim else { return Ok(false) };
            // Its segment is no longer written: what it keeps from now on goes into another.
            self.open.remove(&victim);
            self.shared.let_go(victim, missing_bytes)?;
        }
    }
}

impl Shared {
    /// Deletes segments of a prefix until this number of bytes is free or none is left, and the folder with the last.
    fn let_go(&self, prefix: Prefix, bytes: u64) -> io::Result<()> {
        let folder = self.folder(prefix);
        let mut freed = 0;
        for file in segment_files(&folder)? {
            if freed >= bytes {
                return Ok(());
            }
            // Readers that have it open may finish.
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
        // What is left in it is not ours.
        let _ = std::fs::remove_dir(&folder);
        Ok(())
    }
}
