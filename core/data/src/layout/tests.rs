//! The cuts of an epoch: complete, disjoint, equal in steps.

use proptest::prelude::*;

use super::*;

fn layout(rows: u64, streams: u32, batch: u32, remainder: Remainder, split_batches: u64) -> Layout {
    Layout {
        dataset_rows: rows,
        passes: 1,
        epochs: 2,
        streams,
        batch_rows: batch,
        remainder,
        changes_rows: false,
        split_rows: split_batches * u64::from(batch),
        group_rows: batch,
        coordinated: false,
        mix: Vec::new(),
    }
}

fn splits_of(layout: &Layout, stream: u32) -> Vec<SplitRef> {
    (0..layout.splits(stream)).map(|ordinal| SplitRef { epoch: 0, ordinal, stream }).collect()
}

proptest! {
    #[test]
    fn splits_cover_every_row_once_but_what_drop_leaves_out(
        rows in 1u64..5_000, streams in 1u32..9, batch in 1u32..40, split_batches in 1u64..6, drop: bool,
    ) {
        let remainder = if drop { Remainder::Drop } else { Remainder::Emit };
        let layout = layout(rows, streams, batch, remainder, split_batches);
        let mut seen = vec![0u32; rows as usize];
        let mut steps = Vec::new();
        for stream in 0..streams {
            let mut stream_steps = 0u64;
            for split in splits_of(&layout, stream) {
                let range = layout.split_range(split);
                prop_assert!(range.end > range.start);
                stream_steps += (range.end - range.start).div_ceil(u64::from(batch));
                for row in range {
                    seen[row as usize] += 1;
                }
            }
            steps.push(stream_steps);
        }
        prop_assert!(seen.iter().all(|&count| count <= 1));
        let missing = seen.iter().filter(|&&count| count == 0).count() as u64;
        prop_assert_eq!(missing, layout.dropped_rows());
        let expected = layout.steps().expect("rows are not changed");
        if drop {
            prop_assert!(missing < u64::from(streams) * u64::from(batch));
            prop_assert!(steps.iter().all(|&count| count == expected));
        } else {
            prop_assert_eq!(missing, 0);
            // With fewer rows in the last step than streams, some streams get an empty last batch.
            prop_assert!(steps.iter().all(|&count| count == expected || count + 1 == expected));
        }
    }

    #[test]
    fn a_position_is_found_again_in_its_split(
        rows in 1u64..3_000, streams in 1u32..5, batch in 1u32..40, split_batches in 1u64..6, pick: u64,
    ) {
        let layout = layout(rows, streams, batch, Remainder::Emit, split_batches);
        let stream = (pick % u64::from(streams)) as u32;
        let rows = layout.stream_rows(stream);
        prop_assume!(rows > 0);
        let position = StreamPosition { epoch: 1, row: pick % rows };
        let (split, offset) = layout.locate(stream, position).expect("inside the job");
        prop_assert!(offset < layout.split_len(split));
        prop_assert_eq!(layout.position_in(split, offset), position);
    }
}

#[test]
fn the_end_of_an_epoch_is_the_start_of_the_next() {
    let layout = layout(100, 1, 10, Remainder::Emit, 2);
    let end = StreamPosition { epoch: 0, row: 100 };
    assert_eq!(layout.normalise(0, end), StreamPosition { epoch: 1, row: 0 });
    assert!(layout.is_end(0, StreamPosition { epoch: 1, row: 100 }));
    let last = SplitRef { epoch: 1, ordinal: 4, stream: 0 };
    assert_eq!(layout.next_split(last), None);
    assert_eq!(layout.next_split(SplitRef { epoch: 0, ..last }).map(|next| next.epoch), Some(1));
}

#[test]
fn a_stream_without_rows_is_at_its_end() {
    let layout = layout(2, 3, 10, Remainder::Emit, 1);
    assert_eq!(layout.stream_rows(2), 0);
    assert!(layout.is_end(2, StreamPosition::default()));
}

#[test]
fn splits_that_cannot_be_counted_are_none() {
    let few = layout(100, 2, 4, Remainder::Emit, 1);
    assert_eq!(few.total_splits(), Some(2 * 2 * few.splits(0)));
    let endless = Layout { epochs: u32::MAX, ..few.clone() };
    assert_eq!(endless.total_splits(), Some(u64::from(u32::MAX) * 2 * few.splits(0)));
    let too_many = Layout { epochs: u32::MAX, ..layout(u64::MAX / 2, 1, 1, Remainder::Emit, 1) };
    assert_eq!(too_many.total_splits(), None);
    let repeated = Layout { passes: 3, ..too_many };
    assert_eq!(repeated.epoch_rows(), u64::MAX, "and nothing wraps");
}

#[test]
fn streams_of_a_coordinated_job_share_rounds_that_cover_the_epoch() {
    let layout = Layout { coordinated: true, changes_rows: true, ..layout(1000, 3, 300, Remainder::Emit, 1) };
    assert_eq!((layout.split_rows, layout.stream_rows(2), layout.dropped_rows()), (300, 1000, 0));
    for stream in 0..3 {
        assert_eq!(layout.splits(stream), 4);
        let ranges: Vec<_> =
            (0..4).map(|ordinal| layout.split_range(SplitRef { epoch: 0, ordinal, stream })).collect();
        assert_eq!(ranges, [0..300, 300..600, 600..900, 900..1000]);
    }
    let last = SplitRef { epoch: 0, ordinal: 3, stream: 1 };
    assert_eq!(layout.locate(1, StreamPosition { epoch: 0, row: 950 }), Some((last, 50)));
    assert_eq!(layout.position_in(last, 100), StreamPosition { epoch: 1, row: 0 });
    assert_eq!(layout.steps(), None);
}
