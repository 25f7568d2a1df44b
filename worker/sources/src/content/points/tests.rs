//! Tests of the selection of access points.

use proptest::prelude::*;

use super::*;

/// Boundaries at these offsets.
struct Fixed(Vec<u64>);

impl Boundaries for Fixed {
    fn boundary_before(&self, offset: u64) -> Option<(usize, u64)> {
        let number = self.0.partition_point(|boundary| *boundary <= offset).checked_sub(1)?;
        Some((number, self.0[number]))
    }

    fn access_point(&self, number: usize) -> AccessPoint {
        AccessPoint { bit_offset: self.0[number] * 3, content_offset: self.0[number], state: Vec::new() }
    }
}

fn select(rows: &[u64], boundaries: &Fixed) -> (Vec<Block>, Vec<AccessPoint>) {
    let mut selector = PointSelector::new(0);
    for &row in rows {
        selector.push(row, boundaries).unwrap();
    }
    selector.finish()
}

/// Bytes that reading each block once decompresses.
fn decompressed(blocks: &[Block], points: &[AccessPoint]) -> u64 {
    let start = |block: &Block| {
        let before = points.partition_point(|point| point.content_offset <= block.offset).checked_sub(1);
        before.map_or(0, |point| points[point].content_offset)
    };
    blocks.iter().map(|block| block.offset + block.bytes - start(block)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn blocks_tile_the_rows_and_decompress_little_in_vain(
        row in 1_u64..700_000, step in 1_000_u64..200_000, count in 1_usize..2000, seed: u64,
    ) {
        let varied = |index: usize| 1 + (row + seed.rotate_left(index as u32) % row) / 2;
        let rows: Vec<u64> = (0..count.min((60_000_000 / row) as usize)).map(varied).collect();
        let total: u64 = rows.iter().sum();
        let boundaries = Fixed((1..total / step).map(|number| number * step).collect());
        let (blocks, points) = select(&rows, &boundaries);
        let mut offset = 0;
        for block in &blocks {
            prop_assert_eq!(block.offset, offset);
            offset += block.bytes;
        }
        prop_assert_eq!(offset, total);
        prop_assert_eq!(blocks.iter().map(|block| block.rows as usize).sum::<usize>(), rows.len());
        prop_assert!(decompressed(&blocks, &points) as f64 <= 1.1 * total as f64);
        prop_assert!(points.len() as u64 <= total / MIN_BLOCK_BYTES);
    }
}

#[test]
fn a_part_without_boundaries_is_one_block_up_to_the_maximum_and_then_a_run() {
    let rows = vec![1 << 10; 20 << 10];
    let boundaries = Fixed(vec![7 << 20, 17 << 20]);
    let (blocks, points) = select(&rows, &boundaries);
    let sizes: Vec<u64> = blocks.iter().map(|block| block.bytes >> 20).collect();
    assert_eq!(sizes, [7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3]);
    let offsets: Vec<u64> = points.iter().map(|point| point.content_offset >> 20).collect();
    assert_eq!(offsets, [7, 17]);
}

#[test]
fn short_rows_are_limited_by_their_number() {
    let rows = vec![2; 300_000];
    let (blocks, points) = select(&rows, &Fixed((1..600).map(|number| number * 1000).collect()));
    assert!(blocks.iter().all(|block| block.rows <= MAX_BLOCK_ROWS));
    assert_eq!(blocks.len(), points.len() + 1);
    let (blocks, points) = select(&rows, &Fixed(Vec::new()));
    assert_eq!((blocks.len(), points.len()), (5, 0));
}

#[test]
fn rows_above_the_limit_are_rejected() {
    assert!(PointSelector::new(0).push(1 << 32, &Fixed(Vec::new())).unwrap_err().contains("2 GiB"));
}
