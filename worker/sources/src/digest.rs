//! The digest of the bytes that indexing reads. Sequential reads are hashed as they arrive, so that a shard that is read
//! completely has a digest of all its bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use feedline_data::manifest::ShardDigest;
use sha2::{Digest, Sha256};

/// Maximum number of bytes at the end of a shard that are read only for its digest, such as padding.
pub(crate) const MAX_REST_BYTES: u64 = 4 << 20;

/// Hashes the ranges that indexing reads from one shard.
#[derive(Debug, Default)]
pub(crate) struct DigestRecorder {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Hash of the bytes from the start of the shard to `end`.
    prefix: Sha256,
    end: u64,
    /// Hashes of the ranges that were read beyond the prefix.
    parts: BTreeMap<(u64, u64), [u8; 32]>,
}

impl DigestRecorder {
    /// Adds bytes that were read at an offset. The order of the calls must depend only on the shard.
    pub(crate) fn record(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset + bytes.len() as u64;
        if offset > state.end {
            state.parts.insert((offset, end), Sha256::digest(bytes).into());
        } else if end > state.end {
            let known = (state.end - offset) as usize;
            state.prefix.update(&bytes[known..]);
            state.end = end;
        }
    }

    /// Whether no bytes were read.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end == 0 && state.parts.is_empty()
    }

    /// Whether all reads so far were sequential.
    pub(crate) fn is_sequential(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end > 0 && state.parts.is_empty()
    }

    /// Returns the range that is missing for a digest of all bytes, if the shard was read sequentially, and the range has at most
    /// `max_bytes`.
    pub(crate) fn rest(&self, size_bytes: u64, max_bytes: u64) -> Option<Range<u64>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_short = size_bytes.saturating_sub(state.end) <= max_bytes;
        (state.end > 0 && state.end < size_bytes && state.parts.is_empty() && is_short)
            .then_some(state.end..size_bytes)
    }

    /// Returns the digest of a shard of this size.
    pub(crate) fn finish(&self, size_bytes: u64) -> ShardDigest {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { end, parts, .. } = &*state;
        let prefix: [u8; 32] = state.prefix.clone().finalize().into();
        if *end == size_bytes {
            return ShardDigest::Whole(prefix);
        }
        let mut hash = Sha256::new();
        hash.update(end.to_le_bytes());
        hash.update(prefix);
        for ((start, end), part) in parts {
            hash.update(start.to_le_bytes());
            hash.update(end.to_le_bytes());
            hash.update(part);
        }
        ShardDigest::Parts(hash.finalize().into())
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "the lists contain ranges")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: &[u8] = b"the bytes of a shard, which is read in many ways";

    fn recorded(reads: &[Range<usize>]) -> DigestRecorder {
        let recorder = DigestRecorder::default();
        reads.iter().for_each(|range| recorder.record(range.start as u64, &BYTES[range.clone()]));
        recorder
    }

    fn digest(reads: &[Range<usize>]) -> ShardDigest {
        recorded(reads).finish(BYTES.len() as u64)
    }

    #[test]
    fn a_shard_that_is_read_completely_has_a_digest_of_all_bytes() {
        let whole = ShardDigest::of_bytes(BYTES);
        assert_eq!(digest(&[0..BYTES.len()]), whole);
        assert_eq!(digest(&[0..4, 3..20, 0..9, 20..BYTES.len()]), whole, "some bytes are read twice");
        assert_eq!(digest(&[40..BYTES.len(), 0..BYTES.len()]), whole, "the footer is read first");
        assert_eq!(DigestRecorder::default().finish(0), ShardDigest::of_bytes(b""), "an empty shard");
    }

    #[test]
    fn other_shards_have_a_digest_of_the_parts_that_were_read() {
        let footer = digest(&[40..BYTES.len()]);
        assert!(!footer.is_whole());
        assert_eq!(digest(&[40..BYTES.len()]), footer);
        assert_eq!(digest(&[40..BYTES.len(), 40..BYTES.len()]), footer);
        assert_ne!(digest(&[39..BYTES.len()]), footer);
        assert_ne!(digest(&[0..5, 40..BYTES.len()]), footer);
        assert_eq!(digest(&[30..35, 40..45]), digest(&[40..45, 30..35]));
        assert!(!digest(&[]).is_whole(), "nothing was read");
    }

    #[test]
    fn the_rest_of_a_shard_is_known_after_sequential_reads() {
        assert_eq!(recorded(&[0..30]).rest(BYTES.len() as u64, MAX_REST_BYTES), Some(30..BYTES.len() as u64));
        assert_eq!(recorded(&[0..30]).rest(30, MAX_REST_BYTES), None);
        assert_eq!(recorded(&[0..30]).rest(31 + MAX_REST_BYTES, MAX_REST_BYTES), None);
        assert_eq!(recorded(&[0..10, 20..30]).rest(BYTES.len() as u64, u64::MAX), None);
        assert_eq!(recorded(&[]).rest(BYTES.len() as u64, u64::MAX), None, "a format that reads nothing");
    }

    proptest! {
        /// Any sequence of reads without a gap has the digest of all bytes.
        #[test]
        fn reads_without_a_gap_hash_all_bytes(cuts in proptest::collection::vec((0..BYTES.len(), 0..BYTES.len()), 0..20)) {
            let recorder = DigestRecorder::default();
            let mut end = 0;
            for (start, length) in cuts {
                let start = start.min(end);
                let stop = (start + length).min(BYTES.len());
                recorder.record(start as u64, &BYTES[start..stop]);
                end = end.max(stop);
            }
            recorder.record(end as u64, &BYTES[end..]);
            prop_assert_eq!(recorder.finish(BYTES.len() as u64), ShardDigest::of_bytes(BYTES));
        }
    }
}
