//! Ranges that are read together: which of them share a request, and where each of them is in the buffers.

use std::ops::Range;

/// Maximum gap between two ranges that are read in one request.
pub(super) const COALESCE_GAP_BYTES: u64 = 64 << 10;
/// Maximum size of a request, so that a request completes within its timeout.
pub(super) const MAX_REQUEST_BYTES: u64 = 16 << 20;

/// A range of one of several buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferSpan {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Merges ranges that are close to each other.
pub(super) fn coalesce(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last)
                if range.start <= last.end + COALESCE_GAP_BYTES
                    && range.end - last.start <= MAX_REQUEST_BYTES =>
            {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range.clone()),
        }
    }
    merged
}
