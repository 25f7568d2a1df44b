//! Divides the offsets of a partition into blocks of about equal size, without reading the partition.

use std::ops::Range;

use feedline_data::manifest::{Block, ShardRef};
use feedline_kafka::RecordBlock;

use crate::blocks::MAX_BLOCK_ROWS;
use crate::error::SourceError;
use crate::limits::MAX_BLOCKS;

/// Wanted size of the records of a block in bytes.
const TARGET_BLOCK_BYTES: u64 = 1 << 20;
/// Number of offsets of a sample.
const SAMPLE_OFFSETS: u64 = 1_000;

/// Numbers of offsets before the end of a partition in which an unbounded job searches a record that determines its columns.
const SEARCHED_OFFSETS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// The ranges of offsets to search: the newest offsets, and then older ones in growing steps.
pub(super) fn newest_ranges(end: u64) -> impl Iterator<Item = Range<u64>> {
    let mut before = end;
    let ranges = SEARCHED_OFFSETS.map(|count| {
        let start = end.saturating_sub(count);
        start..std::mem::replace(&mut before, start)
    });
    ranges.into_iter().filter(|range| !range.is_empty())
}

/// The ranges of offsets to sample: at the start, in the middle and at the end, or the whole range if it is short.
pub(super) fn sample_ranges(from: u64, to: u64) -> Vec<Range<u64>> {
    let length = to - from;
    if length <= 3 * SAMPLE_OFFSETS {
        return std::iter::once(from..to).collect();
    }
    let starts = [from, from + length / 2, to - SAMPLE_OFFSETS];
    starts.map(|start| start..start + SAMPLE_OFFSETS).to_vec()
}

/// Divides a range of offsets into blocks. `samples` are records with the first offset of their range.
pub(super) fn divide(
    shard: &ShardRef,
    offsets: Range<u64>,
    samples: &[(u64, RecordBlock)],
) -> Result<Vec<Block>, SourceError> {
    let per_offset =
        samples.iter().map(|(start, block)| bytes_per_offset(*start, block)).max().unwrap_or(1).max(1);
    let rows = (TARGET_BLOCK_BYTES / per_offset).clamp(1, MAX_BLOCK_ROWS as u64);
    let length = offsets.end - offsets.start;
    if length.div_ceil(rows) > MAX_BLOCKS as u64 {
        let reason = format!(
            "{length} offsets need more than {MAX_BLOCKS} blocks: read a shorter range with `start` and `until`"
        );
        return Err(SourceError::unsupported(shard, reason));
    }
    let block = |offset: u64| {
        let rows = rows.min(offsets.end - offset);
        let bytes = (rows * per_offset).max(1);
        Block { rows: rows as u32, offset, bytes, group: 0, row_bytes: Vec::new() }
    };
    Ok(offsets.clone().step_by(rows as usize).map(block).collect())
}

/// The mean size of a record for each offset of a sample, including offsets without a record.
fn bytes_per_offset(start: u64, block: &RecordBlock) -> u64 {
    block.read_bytes.div_ceil(block.next.saturating_sub(start).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shard() -> ShardRef {
        ShardRef { url: "kafka://a/t/0".to_owned(), size_bytes: 0, ..ShardRef::default() }
    }

    fn sample(start: u64, offsets: u64, bytes: u64) -> (u64, RecordBlock) {
        (start, RecordBlock { next: start + offsets, read_bytes: bytes, ..RecordBlock::default() })
    }

    proptest! {
        #[test]
        fn blocks_tile_the_offsets(from in 0u64..1 << 40, length in 1u64..100_000, bytes in 0u64..1 << 30) {
            let blocks = divide(&shard(), from..from + length, &[sample(from, 10, bytes)]).unwrap();
            let mut next = from;
            for block in &blocks {
                prop_assert_eq!(block.offset, next);
                prop_assert!(block.rows > 0 && block.bytes > 0);
                prop_assert!(block.rows == 1 || block.bytes <= TARGET_BLOCK_BYTES);
                next += u64::from(block.rows);
            }
            prop_assert_eq!(next, from + length);
        }

        #[test]
        fn samples_are_within_the_range(from in 0u64..1000, length in 1u64..100_000) {
            for range in sample_ranges(from, from + length) {
                prop_assert!(range.start >= from && range.start < range.end && range.end <= from + length);
            }
        }
    }

    #[test]
    fn older_offsets_are_searched_in_growing_steps() {
        let ranges = |end| newest_ranges(end).collect::<Vec<_>>();
        assert!(ranges(0).is_empty());
        assert_eq!((ranges(700).len(), ranges(700).first()), (1, Some(&(0..700))));
        assert_eq!(ranges(5_000), [4_000..5_000, 0..4_000]);
        let far = [1_999_000..2_000_000, 1_990_000..1_999_000, 1_900_000..1_990_000, 1_000_000..1_900_000];
        assert_eq!(ranges(2_000_000), far);
    }

    #[test]
    fn the_largest_sample_decides() {
        let samples = [sample(0, 1000, 10_000), sample(5000, 100, 1 << 20), sample(9000, 1000, 0)];
        let blocks = divide(&shard(), 0..10_000, &samples).unwrap();
        assert_eq!((blocks[0].rows, blocks.len()), (99, 102));
        assert!(divide(&shard(), 0..1 << 40, &samples).unwrap_err().to_string().contains("shorter range"));
    }
}
