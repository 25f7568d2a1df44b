//! Reads a shard sequentially with large requests. Skips ranges that are not needed.

use bytes::Bytes;

use crate::error::SourceError;
use crate::object::Object;

/// Number of bytes that are read ahead.
const READ_AHEAD_BYTES: u64 = 4 << 20;
/// Minimum gap between two accesses at which the bytes in the gap are skipped.
pub(crate) const SPARSE_STEP_BYTES: u64 = 256 << 10;
/// Number of bytes that are read ahead after a skip.
const SPARSE_READ_AHEAD_BYTES: u64 = 16 << 10;

/// A part of a shard in memory, which moves forward.
pub(crate) struct ReadWindow<'a> {
    object: &'a Object,
    start: u64,
    bytes: Bytes,
    last_offset: u64,
}

impl<'a> ReadWindow<'a> {
    pub(crate) fn new(object: &'a Object) -> Self {
        Self { object, start: 0, bytes: Bytes::new(), last_offset: 0 }
    }

    pub(crate) fn object(&self) -> &'a Object {
        self.object
    }

    /// The bytes from `offset` that are in memory.
    pub(crate) fn bytes(&self, offset: u64) -> &[u8] {
        let start = offset.saturating_sub(self.start).min(self.bytes.len() as u64) as usize;
        &self.bytes[start..]
    }

    /// Returns the bytes from `offset`. Returns at least `min_bytes`, except at the end of the shard.
    pub(crate) async fn read_from(&mut self, offset: u64, min_bytes: u64) -> Result<&[u8], SourceError> {
        let size = self.object.size_bytes();
        let offset = offset.min(size);
        let wanted_end = size.min(offset.saturating_add(min_bytes));
        let end = self.start + self.bytes.len() as u64;
        let is_sparse = offset > end && offset - self.last_offset.min(offset) > SPARSE_STEP_BYTES;
        self.last_offset = offset;
        if offset < self.start || wanted_end > end {
            let ahead = if is_sparse { SPARSE_READ_AHEAD_BYTES } else { READ_AHEAD_BYTES };
            // A short gap is read too, so that the shard has a digest of all its bytes.
            let fills_gap = !is_sparse && offset > end && self.object.is_hashed_sequentially();
            let start = if fills_gap { end } else { offset };
            self.bytes = Bytes::new();
            self.bytes = self.object.read(start..wanted_end.max(size.min(offset + ahead))).await?;
            self.start = start;
        }
        Ok(&self.bytes[(offset - self.start) as usize..])
    }
}
