//! Tests of layouts: splits are disjoint and cover all rows, streams have equal numbers of steps, and sizes have known values.

use proptest::prelude::*;

use super::*;
use crate::runs::RunSummary;
use crate::schema::Schema;

pub(super) fn layout(
    rows: u64,
    streams: u32,
    batch: u32,
    remainder: Remainder,
    split_batches: u64,
) -> Layout {
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
        runs: Default::default(),
        mix_changes: Vec::new(),
        unbounded: false,
        indivisible: false,
    }
}

fn splits_of(layout: &Layout, stream: u32) -> Vec<SplitRef> {
    (0..layout.splits(stream)).map(|ordinal| SplitRef { epoch: 0, ordinal, stream }).collect()
}

proptest! {
    #[test]
    fn splits_cover_every_row_once_except_dropped_rows(
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
            // If the last step has fewer rows than streams, some streams have an empty last batch.
            prop_assert!(steps.iter().all(|&count| count == expected || count + 1 == expected));
        }
    }

    #[test]
    fn locate_is_the_inverse_of_position_in(
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
fn the_end_of_an_epoch_is_normalized_to_the_start_of_the_next() {
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
fn total_splits_is_none_on_overflow() {
    let few = layout(100, 2, 4, Remainder::Emit, 1);
    assert_eq!(few.total_splits(), Some(2 * 2 * few.splits(0)));
    let endless = Layout { epochs: u32::MAX, ..few.clone() };
    assert_eq!(endless.total_splits(), Some(u64::from(u32::MAX) * 2 * few.splits(0)));
    let too_many = Layout { epochs: u32::MAX, ..layout(u64::MAX / 2, 1, 1, Remainder::Emit, 1) };
    assert_eq!(too_many.total_splits(), None);
    let repeated = Layout { passes: 3, ..too_many };
    assert_eq!(repeated.epoch_rows(), u64::MAX, "the number of rows saturates");
}

pub(super) fn summary(rows: u64, row_bytes: u64) -> DatasetSummary {
    DatasetSummary {
        fingerprint: String::new(),
        rows,
        bytes: rows * row_bytes,
        shards: 1,
        blocks: 1,
        schema: Schema::default(),
        defects: 0,
        part_rows: Vec::new(),
        widened: Vec::new(),
        rounded: Vec::new(),
        ignored: Vec::new(),
        content: Default::default(),
        index: String::new(),
        changes: Default::default(),
        is_compressed: false,
        runs: Default::default(),
        part_runs: Vec::new(),
        ranges: None,
        batch_bytes: None,
        graph: None,
    }
}

pub(super) fn pipeline(head: &str, operators: &str) -> Pipeline {
    let yaml = format!("name: p\nsource: {{url: /d, format: text}}\n{head}\noperators: [{operators}]\n");
    Pipeline::from_yaml(&yaml, "p.yaml").expect("the pipeline is valid")
}

#[test]
fn the_size_of_splits_and_groups_follows_rows_bytes_streams_and_window() {
    let window = "shuffle: {window: 4096}";
    // Pipeline head, rows, bytes per row, streams; expected streams, rows per split and rows per group.
    let cases = [
        ("", 100_000, 100, 1, (1, 1_029, 448)),
        (window, 100_000, 100, 1, (1, 4_102, 448)),
        (window, 100_000, 0, 1, (1, 4_102, 448)),
        ("", 200_000_000, 100, 1, (1, 3_052, 448)),
        ("", 100_000, 1 << 20, 1, (1, 70, 7)),
        ("", 100_000, 10_000, 1, (1, 1_029, 21)),
        ("", 10_000, 100, 10, (10, 126, 126)),
        ("order: relaxed", 10_000, 100, 10, (1, 1_029, 448)),
        ("", 1, 100, 3, (3, 7, 7)),
    ];
    for (head, rows, row_bytes, streams, expected) in cases {
        let layout = Layout::new(&pipeline(head, "batch: {size: 7}"), &summary(rows, row_bytes), 2, streams);
        let sizes = (layout.streams, layout.split_rows, layout.group_rows);
        assert_eq!(sizes, expected, "{head} {rows} {row_bytes} {streams}");
        assert_eq!((layout.dataset_rows, layout.passes, layout.epochs, layout.batch_rows), (rows, 1, 2, 7));
        assert!(!layout.coordinated && !layout.changes_rows);
    }
    let repeated = pipeline("on_error: skip", "repeat: {count: 3}, batch: {size: 4, remainder: drop}");
    let layout = Layout::new(&repeated, &summary(0, 0), 1, 1);
    assert_eq!((layout.passes, layout.remainder, layout.changes_rows), (3, Remainder::Drop, true));
    let layout = Layout::new(&repeated, &summary(1_000, 1), 1, 1);
    assert_eq!((layout.epoch_rows(), layout.split_rows), (3_000, 376));
}

#[test]
fn splits_of_compressed_data_are_large_and_consist_of_whole_windows() {
    // Window, rows, bytes per row, streams; expected rows per split.
    let cases = [
        (0, 1_000_000, 1_000, 1, 25_165),
        (1_000, 1_000_000, 1_000, 1, 26_026),
        (40_000, 1_000_000, 1_000, 1, 40_005),
        (40_000, 1_000_000, 100_000, 1, 2_688),
        (40_000, 1_000_000, 6_000, 1, 40_005),
        (1_000, 10_000, 1_000, 2, 1_001),
        (40_000, 10_000, 1_000, 1, 10_003),
        (1, 5, 1_000, 1, 7),
    ];
    for (window, rows, row_bytes, streams, expected) in cases {
        let pipeline = pipeline(&format!("shuffle: {{window: {window}}}"), "batch: {size: 7}");
        let dataset = DatasetSummary { is_compressed: true, ..summary(rows, row_bytes) };
        assert_eq!(Layout::new(&pipeline, &dataset, 1, streams).split_rows, expected, "{window} {rows}");
    }
}

#[test]
fn only_a_round_that_makes_more_than_a_million_splits_has_no_lanes() {
    let runs = RunSummary {
        rows: 600_000_000,
        decoder_bytes: 1,
        lane_rows: vec![600_000_000],
        ..Default::default()
    };
    let dataset = DatasetSummary { is_compressed: true, runs, ..summary(600_000_000, 100) };
    let lanes = |operator| {
        let pipeline = pipeline(
            "shuffle: {window: 100}",
            &format!("pack: {{columns: [t], length: 64, size: 4{operator}}}"),
        );
        Layout::new(&pipeline, &dataset, 1, 1).runs.lanes
    };
    assert_eq!((lanes(""), lanes(", window: 1000"), lanes(", window: 500")), (1, 1, 0));
}

#[test]
fn splits_of_topics_have_megabytes_of_small_records() {
    let text =
        "name: p\nsource: {url: 'kafka://a:1', format: kafka, topics: t}\noperators: [batch: {size: 8}]\n";
    let topic = Pipeline::from_yaml(text, "p.yaml").expect("the pipeline is valid");
    let split_rows = |rows, row_bytes| Layout::new(&topic, &summary(rows, row_bytes), 1, 1).split_rows;
    assert_eq!(split_rows(1_000_000, 1024), 8192);
    assert_eq!(split_rows(40_000, 1024), 5_000, "there are 8 splits");
    assert_eq!(split_rows(1_000_000, 100_000), 672, "a split has at most 64 MiB");
    let group_rows = |row_bytes| Layout::new(&topic, &summary(1_000_000, row_bytes), 1, 1).group_rows;
    assert_eq!([10 << 10, 1024].map(group_rows), [96, 512], "about 1 MiB, or 64 batches");
}

#[test]
fn the_size_of_a_round_follows_rows_bytes_streams_and_batches() {
    let bucket = "bucket_by_length: {columns: [t], boundaries: [10, 40], tokens: 160}";
    let bucket_window = "bucket_by_length: {columns: [t], boundaries: [10, 40], tokens: 160, window: 250}";
    let pack = "pack: {columns: [t], length: 64, size: 4}";
    let pack_window = "pack: {columns: [t], length: 64, size: 4, window: 300}";
    let cases = [
        (bucket, 100_000, 100, 2, 1_024),
        (bucket, 100_000, 100, 10, 2_560),
        (bucket, 4_000, 100, 2, 500),
        (bucket, 1_000, 100, 10, 640),
        (bucket, 100, 100, 10, 100),
        (bucket, 0, 100, 10, 1),
        (bucket, 200_000_000, 100, 2, 3_051),
        (bucket, 100_000, 1 << 20, 2, 64),
        (bucket_window, 100_000, 100, 2, 250),
        (pack, 100_000, 100, 10, 5_120),
        (pack_window, 100_000, 100, 10, 300),
    ];
    for (operator, rows, row_bytes, streams, expected) in cases {
        let layout = Layout::new(&pipeline("", operator), &summary(rows, row_bytes), 2, streams);
        let sizes = (layout.split_rows, u64::from(layout.group_rows), u64::from(layout.batch_rows));
        assert_eq!(sizes, (expected, expected, expected), "{operator} {rows} {row_bytes} {streams}");
        assert_eq!((layout.dataset_rows, layout.passes, layout.epochs), (rows, 1, 2));
        assert!(layout.coordinated && layout.changes_rows && layout.streams == streams);
    }
    let repeated = pipeline("", &format!("repeat: {{count: 5}}, {bucket}"));
    assert_eq!(Layout::new(&repeated, &summary(1_000, 100), 1, 2).split_rows, 625);
}

#[test]
fn streams_of_unequal_length_have_known_splits_and_steps() {
    let uneven = layout(10, 3, 2, Remainder::Emit, 1);
    assert_eq!([0, 1, 2].map(|stream| uneven.stream_rows(stream)), [4, 3, 3]);
    let ranges = |stream| splits_of(&uneven, stream).into_iter().map(|split| uneven.split_range(split));
    assert_eq!(ranges(0).collect::<Vec<_>>(), [0..2, 6..8]);
    assert_eq!(ranges(1).collect::<Vec<_>>(), [2..4, 8..9]);
    assert_eq!(ranges(2).collect::<Vec<_>>(), [4..6, 9..10]);
    assert_eq!((uneven.steps(), uneven.total_splits()), (Some(2), Some(12)));
    assert_eq!([0, 1, 2].map(|step| uneven.step_rows(step)), [6, 4, 4]);
    let step_of = |row| uneven.step_of(StreamPosition { epoch: 0, row });
    assert_eq!([0, 1, 2, 3, 4, 9].map(step_of), [0, 0, 1, 1, 1, 1].map(Some));
    let longer = layout(100, 3, 2, Remainder::Emit, 5);
    assert_eq!((longer.steps(), longer.step_rows(15), longer.step_rows(16)), (Some(17), 6, 4));
    assert_eq!(longer.step_of(StreamPosition { epoch: 0, row: 31 }), Some(15));
    let carried = Layout { remainder: Remainder::Carry, ..longer.clone() };
    let changed = Layout { changes_rows: true, ..longer };
    for unknown in [carried, changed] {
        assert_eq!((unknown.steps(), unknown.step_of(StreamPosition::default())), (None, None));
    }
}

#[test]
fn rows_are_dropped_in_the_layout_only_if_operators_do_not_change_rows() {
    let dropping = layout(10, 3, 2, Remainder::Drop, 1);
    assert_eq!((dropping.dropped_rows(), dropping.steps()), (4, Some(1)));
    assert_eq!(Layout { changes_rows: true, ..dropping.clone() }.dropped_rows(), 0);
    assert_eq!(Layout { remainder: Remainder::Emit, ..dropping }.dropped_rows(), 0);
}

#[test]
fn a_stream_without_rows_in_the_last_step_has_a_pending_empty_step() {
    let layout = layout(7, 3, 2, Remainder::Emit, 1);
    let is_pending =
        |stream, epoch, row| layout.has_pending_empty_step(stream, StreamPosition { epoch, row });
    assert!(is_pending(1, 0, 2) && is_pending(2, 1, 2));
    assert!(!is_pending(1, 0, 1) && !is_pending(1, 0, 3) && !is_pending(1, 2, 2));
    assert!(!is_pending(0, 0, 3), "stream 0 has a row in the last step");
    let at_end = StreamPosition { epoch: 1, row: 2 };
    assert_eq!(layout.normalise(1, at_end), at_end);
    assert!(!layout.is_end(1, at_end));
    assert!(layout.is_end(0, StreamPosition { epoch: 1, row: 3 }));
    assert!(!Layout { changes_rows: true, ..layout.clone() }.has_pending_empty_step(1, at_end));
    let single = Layout { dataset_rows: 1, ..layout };
    assert!(!single.has_pending_empty_step(1, StreamPosition::default()), "stream 1 has no rows at all");
}

#[test]
fn positions_at_the_ends_of_splits_epochs_and_the_job_are_located() {
    let layout = layout(100, 2, 5, Remainder::Emit, 2);
    let located = |epoch, row| layout.locate(1, StreamPosition { epoch, row });
    let split = |epoch, ordinal| SplitRef { epoch, ordinal, stream: 1 };
    assert_eq!(located(0, 9), Some((split(0, 0), 9)));
    assert_eq!(located(0, 10), Some((split(0, 1), 0)));
    assert_eq!(located(0, 50), Some((split(1, 0), 0)));
    assert_eq!((located(1, 50), located(2, 0)), (None, None));
    assert_eq!(layout.position_in(split(0, 2), 3), StreamPosition { epoch: 0, row: 23 });
    assert_eq!(layout.position_in(split(0, 4), 10), StreamPosition { epoch: 1, row: 0 });
    assert_eq!(layout.split_len(split(0, 4)), 10);
    assert_eq!(layout.next_split(split(0, 3)), Some(split(0, 4)));
    assert_eq!(layout.next_split(split(0, 4)), Some(split(1, 0)));
    assert_eq!(layout.next_split(split(1, 4)), None);
}

#[test]
fn the_start_of_the_rows_after_a_round_is_a_pass_and_an_offset() {
    let once = layout(100, 2, 5, Remainder::Emit, 4);
    let starts = |layout: &Layout, epoch| [0, 1, 2].map(|ordinal| layout.start_after_round(epoch, ordinal));
    assert_eq!(starts(&once, 0), [Some((0, 40)), Some((1, 0)), Some((1, 0))]);
    assert_eq!(starts(&once, 1), [Some((1, 40)), None, None]);
    let repeated = Layout { passes: 3, ..once.clone() };
    assert_eq!(repeated.start_after_round(1, 3), Some((4, 60)));
    assert_eq!(repeated.start_after_round(0, 6), Some((3, 0)));
    let coordinated = Layout { coordinated: true, ..repeated };
    assert_eq!(coordinated.start_after_round(1, 6), Some((4, 40)));
}

#[test]
fn changes_of_a_mix_are_selected_by_the_first_pass_of_the_epoch() {
    let change = |pass| MixChange { pass, offset: 0, weights: vec![1.0] };
    let mix = vec![change(1), change(2), change(5)];
    let layout = Layout { passes: 2, mix_changes: mix.clone(), ..layout(100, 2, 5, Remainder::Emit, 4) };
    assert_eq!((layout.mix_changes_from(0), layout.mix_changes_from(1)), (&mix[..], &mix[1..]));
    assert_eq!(layout.mix_changes_from(2), &mix[1..]);
    assert_eq!(layout.mix_changes_from(3), &mix[2..]);
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
