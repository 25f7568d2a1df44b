//! Rows of a feature that are not in memory: the parts of the file to read for them, and the rows that were read.

use std::ops::Range;

use arrow::buffer::Buffer;

/// Reads begin and end at multiples of the size of a page.
pub(crate) const PAGE_BYTES: u64 = 4 << 10;
/// Maximum distance of two parts of the file that are read together. To read so much more takes less time than another read.
const MAX_GAP_BYTES: u64 = 8 << 10;
/// Maximum size of a read, unless one row is larger.
pub(crate) const MAX_READ_BYTES: u64 = 1 << 20;

/// Rows of a feature that were read from a disk or a store.
#[derive(Debug)]
pub struct ColdRows {
    /// The indexes of the rows, ascending and without duplicates.
    indexes: Vec<u64>,
    /// The rows in this order.
    data: Buffer,
    /// The number of rows in blocks that were read from a store.
    store_rows: u64,
}

/// Where the rows of a feature are in its file. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlaces {
    /// The size of the header, which is before the first row.
    pub(crate) header: u64,
    pub(crate) row: u64,
    /// The size of the file with its header.
    pub(crate) file: u64,
}

/// A part of the file that is read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowRead {
    /// The bytes in the file.
    pub(crate) bytes: Range<u64>,
    /// The rows in these bytes, as places in the list of rows.
    pub(crate) rows: Range<usize>,
}

impl ColdRows {
    /// `indexes` ascend without duplicates, and `data` has a row for each of them.
    pub(crate) fn new(indexes: Vec<u64>, data: Buffer, store_rows: u64) -> Self {
        Self { indexes, data, store_rows }
    }

    /// Copies rows that neither a disk nor a store of this worker has sent. `indexes` ascend without duplicates, and `bytes` has a row
    /// for each of them.
    pub fn from_bytes(indexes: Vec<u64>, bytes: &[u8]) -> Self {
        // The copy is aligned for all numbers.
        Self::new(indexes, Buffer::from_slice_ref(bytes), 0)
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.indexes.len() as u64
    }

    /// The number of rows in blocks that were read from a store. The other rows were read from a local disk.
    pub fn store_rows(&self) -> u64 {
        self.store_rows
    }

    /// The rows in the order of their indexes.
    pub(crate) fn data(&self) -> &Buffer {
        &self.data
    }

    /// Returns the place of a row among the rows.
    pub(crate) fn place(&self, index: u64) -> Option<u64> {
        self.indexes.binary_search(&index).ok().map(|place| place as u64)
    }
}

impl RowPlaces {
    /// Returns where a row begins. The row exists.
    pub(crate) fn start(self, row: u64) -> u64 {
        self.header + row * self.row
    }

    /// Returns the reads for rows, in the order of the file. The rows exist, ascend, and have no duplicates.
    pub(crate) fn reads(self, rows: &[u64]) -> Vec<RowRead> {
        let mut reads: Vec<RowRead> = Vec::new();
        for (place, &row) in rows.iter().enumerate() {
            let start = self.start(row);
            let end = self.file.min((start + self.row).next_multiple_of(PAGE_BYTES));
            let start = self.header.max(start - start % PAGE_BYTES);
            if let Some(last) = reads.last_mut()
                && start <= last.bytes.end + MAX_GAP_BYTES
                && end - last.bytes.start <= MAX_READ_BYTES
            {
                last.bytes.end = end;
                last.rows.end = place + 1;
            } else {
                reads.push(RowRead { bytes: start..end, rows: place..place + 1 });
            }
        }
        reads
    }
}

/// Returns the indexes from `first` to `end`, sorted and without duplicates.
pub(crate) fn sorted_between<I: Copy + Into<u64>>(indexes: &[I], first: u64, end: u64) -> Vec<u64> {
    let indexes = indexes.iter().map(|&index| -> u64 { index.into() });
    let mut rows: Vec<u64> = indexes.filter(|index| (first..end).contains(index)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn near_rows_are_read_together_and_far_rows_are_not() {
        let places = RowPlaces { header: 128, row: 512, file: 128 + 512 * 1_000 };
        let reads = places.reads(&[0, 1, 20, 100, 999]);
        let expected = [
            RowRead { bytes: 128..12_288, rows: 0..3 },
            RowRead { bytes: 49_152..53_248, rows: 3..4 },
            RowRead { bytes: 507_904..512_128, rows: 4..5 },
        ];
        assert_eq!(reads, expected);
        let large = RowPlaces { header: 64, row: 3 << 20, file: 64 + (9 << 20) };
        let lengths: Vec<u64> =
            large.reads(&[0, 1, 2]).iter().map(|read| read.bytes.end - read.bytes.start).collect();
        assert!(lengths.iter().all(|length| *length >= 3 << 20), "a large row has its own read: {lengths:?}");
    }

    #[test]
    fn rows_in_memory_and_rows_that_do_not_exist_are_not_read() {
        assert_eq!(sorted_between(&[7_u32, 3, 9, 7, 10, 2], 3, 10), [3, 7, 9]);
        assert!(sorted_between::<u64>(&[], 0, 10).is_empty());
    }

    proptest! {
        #[test]
        fn reads_contain_all_rows_once_and_stay_in_the_file(
            (count, row) in (1_u64..5_000, 1_u64..20_000),
            header in 64_u64..256,
            indexes in prop::collection::vec(0_u64..5_000, 0..200),
        ) {
            let places = RowPlaces { header, row, file: header + row * count };
            let rows = sorted_between(&indexes, 0, count);
            let reads = places.reads(&rows);
            let mut next = 0;
            for read in &reads {
                prop_assert_eq!(read.rows.start, next);
                prop_assert!(read.bytes.start >= header && read.bytes.end <= places.file);
                for &index in &rows[read.rows.clone()] {
                    let start = places.start(index);
                    prop_assert!(read.bytes.start <= start && start + row <= read.bytes.end);
                }
                next = read.rows.end;
            }
            prop_assert_eq!(next, rows.len());
            for pair in reads.windows(2) {
                prop_assert!(pair[0].bytes.start <= pair[1].bytes.start);
            }
        }
    }
}
