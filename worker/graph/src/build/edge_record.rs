//! Edges in the memory and in the temporary files of a build. Without weights, times and edge ids, an edge is a number of at most
//! eight bytes.

use std::cmp::Ordering;

/// An edge of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct BucketEdge {
    /// The target, counted from the first target of the bucket.
    pub(super) target: u32,
    /// The source.
    pub(super) source: u32,
    /// The time; 0 without times.
    pub(super) time: i64,
    /// The position of the edge in the input.
    pub(super) row: u64,
    /// The weight; 0 without weights.
    pub(super) weight: f64,
}

/// How many bits the targets and sources of a bucket have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyBits {
    pub(super) target: u32,
    pub(super) source: u32,
}

impl KeyBits {
    /// The bits for numbers below these counts.
    pub(super) fn of(targets: u64, sources: u64) -> Self {
        let bits = |count: u64| u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { target: bits(targets), source: bits(sources) }
    }
}

/// An edge as it is stored and sorted. The order is that of targets, times, sources and rows.
pub(super) trait EdgeRecord: Copy + Ord + Send + Sync {
    /// The size of a record in memory while it is sorted, with the rows that are made from it.
    const SORT_BYTES: u64;

    fn new(edge: &BucketEdge, bits: KeyBits) -> Self;

    fn edge(self, bits: KeyBits) -> BucketEdge;

    /// The size of a record in a file.
    fn stored_bytes(bits: KeyBits) -> usize;

    /// Appends a record of `width` bytes.
    fn write(self, width: usize, bytes: &mut Vec<u8>);

    /// Reads a record of `width` bytes at the start of `bytes`. At least [`READ_MARGIN`] more bytes follow the record.
    fn read(bytes: &[u8], width: usize) -> Self;

    fn sort(records: &mut Vec<Self>, bits: KeyBits);
}

/// The number of bytes that must follow the last record of a buffer that is read.
pub(super) const READ_MARGIN: usize = 8;

/// An edge without weight, time and row: the target in the high bits, and the source in the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NarrowEdge(u64);

impl EdgeRecord for NarrowEdge {
    /// The record, the buffer of the sort, and a source.
    const SORT_BYTES: u64 = 8 + 8 + 4;

    fn new(edge: &BucketEdge, bits: KeyBits) -> Self {
        Self(u64::from(edge.target) << bits.source | u64::from(edge.source))
    }

    fn edge(self, bits: KeyBits) -> BucketEdge {
        let source = self.0 & ((1 << bits.source) - 1);
        BucketEdge { target: (self.0 >> bits.source) as u32, source: source as u32, ..BucketEdge::default() }
    }

    fn stored_bytes(bits: KeyBits) -> usize {
        (bits.target + bits.source).div_ceil(8).max(1) as usize
    }

    fn write(self, width: usize, bytes: &mut Vec<u8>) {
        let end = bytes.len() + width;
        // Appending eight bytes is faster than appending a variable number.
        bytes.extend_from_slice(&self.0.to_le_bytes());
        bytes.truncate(end);
    }

    fn read(bytes: &[u8], width: usize) -> Self {
        let word = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Self(word & (u64::MAX >> (64 - 8 * width as u32)))
    }

    fn sort(records: &mut Vec<Self>, bits: KeyBits) {
        radix_sort(records, bits.target + bits.source);
    }
}

/// Sorts by the low bits, with one pass for each digit of at most [`DIGIT_BITS`].
fn radix_sort(records: &mut Vec<NarrowEdge>, bits: u32) {
    const DIGIT_BITS: u32 = 11;
    /// Comparisons are faster for few records.
    const MIN_RECORDS: usize = 1 << 12;
    if records.len() < MIN_RECORDS {
        records.sort_unstable();
        return;
    }
    let passes = bits.div_ceil(DIGIT_BITS).max(1);
    let digit_bits = bits.div_ceil(passes).max(1);
    let digits = 1_usize << digit_bits;
    let digit = |record: NarrowEdge, pass: u32| (record.0 >> (pass * digit_bits)) as usize & (digits - 1);
    // The number of records with a digit does not depend on their order, so all passes are counted together.
    let mut ends = vec![0_usize; digits * passes as usize];
    for record in records.iter() {
        for (pass, ends) in (0..passes).zip(ends.chunks_exact_mut(digits)) {
            ends[digit(*record, pass)] += 1;
        }
    }
    let mut sorted = vec![NarrowEdge(0); records.len()];
    for (pass, ends) in (0..passes).zip(ends.chunks_exact_mut(digits)) {
        let mut start = 0;
        for end in ends.iter_mut() {
            let count = *end;
            *end = start;
            start += count;
        }
        for record in records.iter() {
            let slot = &mut ends[digit(*record, pass)];
            sorted[*slot] = *record;
            *slot += 1;
        }
        std::mem::swap(records, &mut sorted);
    }
}

/// An edge with its weight, time and row.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideEdge(BucketEdge);

/// The size of a [`WideEdge`] in a file.
const WIDE_BYTES: usize = 32;

impl WideEdge {
    fn key(&self) -> (u32, i64, u32, u64) {
        (self.0.target, self.0.time, self.0.source, self.0.row)
    }
}

impl PartialEq for WideEdge {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for WideEdge {}

impl PartialOrd for WideEdge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WideEdge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl EdgeRecord for WideEdge {
    /// The record, and its source, weight, time and row.
    const SORT_BYTES: u64 = 32 + 4 + 12 + 8 + 8;

    fn new(edge: &BucketEdge, _bits: KeyBits) -> Self {
        Self(*edge)
    }

    fn edge(self, _bits: KeyBits) -> BucketEdge {
        self.0
    }

    fn stored_bytes(_bits: KeyBits) -> usize {
        WIDE_BYTES
    }

    fn write(self, _width: usize, bytes: &mut Vec<u8>) {
        let BucketEdge { target, source, time, row, weight } = self.0;
        bytes.extend_from_slice(&target.to_le_bytes());
        bytes.extend_from_slice(&source.to_le_bytes());
        bytes.extend_from_slice(&time.to_le_bytes());
        bytes.extend_from_slice(&row.to_le_bytes());
        bytes.extend_from_slice(&weight.to_le_bytes());
    }

    fn read(bytes: &[u8], _width: usize) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        let nodes = word(0);
        Self(BucketEdge {
            target: nodes as u32,
            source: (nodes >> 32) as u32,
            time: word(1) as i64,
            row: word(2),
            weight: f64::from_bits(word(3)),
        })
    }

    fn sort(records: &mut Vec<Self>, _bits: KeyBits) {
        records.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_cover_all_numbers_below_a_count() {
        assert_eq!(KeyBits::of(0, 1), KeyBits { target: 0, source: 0 });
        assert_eq!(KeyBits::of(2, 3), KeyBits { target: 1, source: 2 });
        assert_eq!(KeyBits::of(1 << 16, u64::from(u32::MAX)), KeyBits { target: 16, source: 32 });
        assert_eq!(NarrowEdge::stored_bytes(KeyBits { target: 16, source: 24 }), 5);
        assert_eq!(NarrowEdge::stored_bytes(KeyBits { target: 0, source: 0 }), 1);
    }

    proptest! {
        #[test]
        fn records_round_trip(targets in 1_u64..1 << 32, sources in 1_u64..1 << 32, time: i64, row: u64, weight in 0.0..9.0) {
            let bits = KeyBits::of(targets, sources);
            let (target, source) = ((targets - 1) as u32, (sources - 1) as u32);
            let edge = BucketEdge { target, source, time, row, weight };
            let mut bytes = Vec::new();
            let width = NarrowEdge::stored_bytes(bits);
            NarrowEdge::new(&edge, bits).write(width, &mut bytes);
            prop_assert_eq!(bytes.len(), width);
            bytes.extend([0xff; READ_MARGIN]);
            let narrow = NarrowEdge::read(&bytes, width).edge(bits);
            prop_assert_eq!(narrow, BucketEdge { target, source, ..BucketEdge::default() });
            bytes.clear();
            WideEdge::new(&edge, bits).write(WIDE_BYTES, &mut bytes);
            prop_assert_eq!(bytes.len(), WIDE_BYTES);
            prop_assert_eq!(WideEdge::read(&bytes, WIDE_BYTES).edge(bits), edge);
        }

        #[test]
        fn the_radix_sort_sorts(mut keys in prop::collection::vec(0_u64..1 << 39, 4_096..6_000), shift in 0_u32..39) {
            keys.iter_mut().for_each(|key| *key >>= shift);
            let mut records: Vec<NarrowEdge> = keys.iter().map(|&key| NarrowEdge(key)).collect();
            radix_sort(&mut records, 39 - shift);
            keys.sort_unstable();
            prop_assert_eq!(records.iter().map(|record| record.0).collect::<Vec<_>>(), keys);
        }
    }
}
