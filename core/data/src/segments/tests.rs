//! Tests of segments: each offset is in one split once, for all numbers of streams, seeds, windows and sizes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn range(partition: u32, from: u64, rows: u64, row_bytes: u32) -> OffsetRange {
    OffsetRange { partition, from, to: from + rows, row_bytes }
}

fn splits(segment: &Segment, streams: u32) -> impl Iterator<Item = SplitRef> + use<> {
    let rounds = segment.first_round..segment.end_round();
    rounds.flat_map(move |ordinal| (0..streams).map(move |stream| SplitRef { epoch: 0, ordinal, stream }))
}

/// The offsets of rows, as (partition, offset).
fn offsets(order: &SegmentOrder, rows: &[RowRef]) -> Vec<(u32, u64)> {
    let at = |row: &RowRef| {
        let block = order.block(row.block).expect("a block of the segment");
        assert_eq!(row.shard, block.partition);
        assert!(row.row < block.block.rows);
        (block.partition, block.block.offset + u64::from(row.row))
    };
    rows.iter().map(at).collect()
}

proptest! {
    #[test]
    fn every_offset_is_in_one_split_once_and_any_part_of_a_split_is_the_same(
        ranges in prop::collection::vec((0u64..1 << 40, 0u64..300, 1u32..1 << 19), 1..6), streams in 1u32..7, seed: u64,
        window in 0u64..200, first_row_id in 0u64..1000, first_round in 0u64..1 << 50, rounds in 1u64..5, cut: u32,
    ) {
        let ranges = (0..).zip(ranges).map(|(partition, (from, rows, bytes))| range(partition, from, rows, bytes));
        let segment = Segment { first_round, rounds, first_row_id, epoch: 0, ranges: ranges.collect() };
        let order = SegmentOrder::new(segment.clone(), streams, seed, window);
        let mut found = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for split in splits(&segment, streams) {
            let rows = order.rows(split, 0..u32::MAX);
            prop_assert_eq!(rows.len() as u32, order.split_rows(split));
            let share = segment.rows() / (rounds * u64::from(streams));
            prop_assert!((share..=share + 1).contains(&(rows.len() as u64)), "the rows are divided evenly");
            let cut = cut % (rows.len() as u32 + 1);
            prop_assert_eq!(&order.rows(split, cut..u32::MAX)[..], &rows[cut as usize..]);
            prop_assert_eq!(&order.rows(split, 0..cut)[..], &rows[..cut as usize]);
            ids.extend(rows.iter().map(|row| row.row_id));
            for offset in offsets(&order, &rows) {
                prop_assert!(found.insert(offset), "an offset appears twice");
            }
        }
        let all: BTreeSet<(u32, u64)> =
            segment.ranges.iter().flat_map(|range| (range.from..range.to).map(|offset| (range.partition, offset))).collect();
        prop_assert_eq!(found, all);
        prop_assert_eq!(ids, (first_row_id..first_row_id + segment.rows()).collect::<BTreeSet<_>>());
    }

    #[test]
    fn over_many_small_segments_all_streams_receive_the_same_number_of_rows(
        sizes in prop::collection::vec(1u64..40, 1..60), streams in 1u32..9,
    ) {
        let mut received = vec![0_u64; streams as usize];
        let mut first_row_id = 0;
        for (round, size) in sizes.iter().enumerate() {
            let segment = Segment {
                first_round: round as u64, rounds: 1, first_row_id, epoch: 0, ranges: vec![range(0, first_row_id, *size, 100)],
            };
            for split in splits(&segment, streams) {
                let rows = segment.rows_of(streams, split);
                received[split.stream as usize] += rows.end - rows.start;
            }
            first_row_id += size;
            let (least, most) = (received.iter().min(), received.iter().max());
            prop_assert!(most.copied().unwrap_or(0) - least.copied().unwrap_or(0) <= 1, "{:?}", received);
        }
    }

    #[test]
    fn blocks_tile_a_range(from in 0u64..1 << 40, rows in 0u64..200_000, row_bytes: u32) {
        let mut next = from;
        for SegmentBlock { partition, block } in blocks_of(&range(7, from, rows, row_bytes)) {
            prop_assert_eq!((partition, block.offset), (7, next));
            prop_assert!(block.rows > 0 && (block.rows == 1 || block.bytes <= TARGET_BLOCK_BYTES));
            next += u64::from(block.rows);
        }
        prop_assert_eq!(next, from + rows);
    }
}

#[test]
fn the_order_depends_on_the_seed_and_the_segment() {
    let segment = |first_round| Segment {
        first_round,
        rounds: 1,
        first_row_id: 0,
        epoch: 0,
        ranges: vec![range(0, 10, 50, 1 << 17), range(1, 0, 50, 1 << 17)],
    };
    let order = |first_round, seed, window| {
        let order = SegmentOrder::new(segment(first_round), 1, seed, window);
        let split = SplitRef { epoch: 0, ordinal: first_round, stream: 0 };
        offsets(&order, &order.rows(split, 0..u32::MAX))
    };
    assert_eq!(order(0, 1, 16), order(0, 1, 16));
    assert_ne!(order(0, 1, 16), order(0, 2, 16));
    assert_ne!(order(0, 1, 16), order(1, 1, 16));
    let stored: Vec<(u32, u64)> = (10..60).map(|at| (0, at)).chain((0..50).map(|at| (1, at))).collect();
    assert_eq!(order(3, 1, 0), stored, "without a window the order is that of the ranges");
}

#[test]
fn other_splits_have_no_rows_and_the_text_form_is_short() {
    let segment =
        Segment { first_round: 5, rounds: 2, first_row_id: 9, epoch: 1, ranges: vec![range(3, 7, 5, 20)] };
    for ordinal in [0, 4, 7, u64::MAX] {
        assert_eq!(segment.rows_of(2, SplitRef { epoch: 0, ordinal, stream: 0 }), 0..0);
    }
    let text = serde_json::to_string(&segment).unwrap();
    assert_eq!(text, r#"{"round":5,"rounds":2,"row":9,"epoch":1,"ranges":[[3,7,12,20]]}"#);
    assert_eq!(serde_json::from_str::<Segment>(&text).unwrap(), segment);
}
