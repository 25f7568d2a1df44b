//! Tests of lanes: each run is decompressed about once if each lane has a worker.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::compression::{AccessPoint, Codec, ShardCompression};
use crate::layout::{Layout, SplitRef};
use crate::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use crate::mix::MixChange;
use crate::order::RowRef;
use crate::pipeline::Pipeline;
use crate::schema::Schema;
use crate::sequence::Sequence;

const BLOCK_ROWS: u32 = 20;
const ROW_BYTES: u64 = 50_000;

/// A compressed shard. Without access points, all of its blocks form a run.
fn shard(number: usize, blocks: u32, has_points: bool) -> Shard {
    let bytes = u64::from(BLOCK_ROWS) * ROW_BYTES;
    let block = |block: u32| Block {
        rows: BLOCK_ROWS,
        offset: u64::from(block) * bytes,
        bytes,
        group: 0,
        row_bytes: Vec::new(),
    };
    let point = |block: u32| AccessPoint {
        bit_offset: u64::from(block) * 8,
        content_offset: u64::from(block) * bytes,
        state: Vec::new(),
    };
    let compression = ShardCompression {
        codec: Codec::Zstd,
        content_bytes: u64::from(blocks) * bytes,
        readable_bytes: u64::from(blocks),
        decoder_bytes: 3 << 20,
        points: (1..blocks).map(point).filter(|_| has_points).collect(),
    };
    let index = ShardIndex {
        blocks: (0..blocks).map(block).collect(),
        compression: Some(compression),
        ..ShardIndex::default()
    };
    let url = format!("file:///d/{number}");
    Shard::new(ShardRef { url, size_bytes: u64::from(blocks), ..ShardRef::default() }, index)
}

fn manifest(shards: &[(u32, bool)]) -> Manifest {
    let shard = |(number, (blocks, has_points)): (usize, &(u32, bool))| shard(number, *blocks, *has_points);
    Manifest { schema: Schema::default(), shards: shards.iter().enumerate().map(shard).collect() }
}

/// The number of blocks of each shard of each dataset of a mix, and whether they have access points.
type Mixed = Vec<Vec<(u32, bool)>>;

fn manifest_of_mix(datasets: &[Vec<(u32, bool)>]) -> Manifest {
    let mut all = manifest(&datasets.concat());
    let parts = (0..).zip(datasets).flat_map(|(part, shards)| shards.iter().map(move |_| part));
    all.shards.iter_mut().zip(parts).for_each(|(shard, part)| shard.object.part = part);
    all
}

fn pipeline_of_mix(weights: &[f64], stop: &str, window: u64, operators: &str) -> Pipeline {
    let part = |weight: &f64| format!("{{url: /d, format: text, weight: {weight}}}");
    let parts: Vec<String> = weights.iter().map(part).collect();
    let yaml = format!(
        "name: p\nsource: {{mix: [{}], stop: {stop}}}\nseed: 3\nshuffle: {{window: {window}}}\noperators: [{operators}]\n",
        parts.join(", ")
    );
    Pipeline::from_yaml(&yaml, "p.yaml").expect("the pipeline is valid")
}

fn pipeline(window: u64, operators: &str) -> Pipeline {
    let yaml = format!(
        "name: p\nsource: {{url: /d, format: text}}\nseed: 3\nshuffle: {{window: {window}}}\noperators: [{operators}]\n"
    );
    Pipeline::from_yaml(&yaml, "p.yaml").expect("the pipeline is valid")
}

/// All splits of an epoch, in the order of their rows.
fn splits(layout: &Layout) -> Vec<SplitRef> {
    let streams = if layout.coordinated { 1 } else { layout.streams };
    let of = |stream| (0..layout.splits(stream)).map(move |ordinal| SplitRef { epoch: 0, ordinal, stream });
    let mut splits: Vec<SplitRef> = (0..streams).flat_map(of).collect();
    splits.sort_by_key(|split| layout.split_range(*split).start);
    splits
}

fn rows_of_epoch(sequence: &Sequence, layout: &Layout) -> Vec<RowRef> {
    let passes: Vec<_> = (0..layout.passes).map(|pass| sequence.pass(pass)).collect();
    passes.iter().flat_map(|pass| sequence.rows(pass, 0..layout.dataset_rows)).collect()
}

/// The number of decompressed rows of an epoch divided by the number of rows, if each key has a worker, and each split without
/// a key has its own worker. A worker decompresses each run once, up to the last row that it needs.
fn decompressed(manifest: &Manifest, pipeline: &Pipeline, streams: u32) -> f64 {
    let dataset = manifest.summary();
    let layout = Layout::new(pipeline, &dataset, 1, streams);
    let sequence = Sequence::new(pipeline, manifest, &layout);
    let rows = rows_of_epoch(&sequence, &layout);
    assert_eq!(rows.len() as u64, layout.epoch_rows());
    // The blocks that each worker decompresses: those of runs from their start.
    let mut ends: BTreeMap<(u64, u32, u32, u32), u32> = BTreeMap::new();
    for split in splits(&layout) {
        let range = layout.split_range(split);
        let worker = layout.run_key(&dataset, split).unwrap_or(1 << 32 | range.start);
        for row in &rows[range.start as usize..range.end as usize] {
            let index = &manifest.shards[row.shard as usize].index;
            let is_run = index.compression.as_ref().is_some_and(|shard| shard.points.is_empty());
            let (run, end) = if is_run { (0, row.block + 1) } else { (row.block, 1) };
            let known = ends.entry((worker, row.pass, row.shard, run)).or_default();
            *known = (*known).max(end);
        }
    }
    let blocks: u64 = ends.values().map(|end| u64::from(*end)).sum();
    (blocks * u64::from(BLOCK_ROWS)) as f64 / rows.len() as f64
}

#[test]
fn an_epoch_decompresses_little_more_than_the_content_on_any_fleet() {
    let equal: Vec<(u32, bool)> = vec![(40, false); 60];
    let few: Vec<(u32, bool)> = vec![(200, false); 4];
    let unequal: Vec<(u32, bool)> = (0..50).map(|number| (20 + number * 37 % 200, false)).collect();
    let mixed: Vec<(u32, bool)> = (0..80).map(|number| (30 + number * 37 % 60, number % 3 > 0)).collect();
    let one_large: Vec<(u32, bool)> = std::iter::once((2_000, false)).chain(vec![(400, true); 20]).collect();
    for (name, shards) in
        [("equal", equal), ("few", few), ("unequal", unequal), ("mixed", mixed), ("one large", one_large)]
    {
        let manifest = manifest(&shards);
        for (window, operators, streams) in [
            (60, "batch: {size: 8}", 1),
            (60, "batch: {size: 8}", 8),
            (20_000, "batch: {size: 8}", 1),
            (0, "batch: {size: 8}", 1),
            (0, "batch: {size: 8}", 8),
            (60, "repeat: {count: 3}, batch: {size: 8}", 2),
            (60, "pack: {columns: [t], length: 64, size: 4}", 4),
            (2_000, "pack: {columns: [t], length: 64, size: 4, window: 500}", 4),
        ] {
            let ratio = decompressed(&manifest, &pipeline(window, operators), streams);
            assert!(ratio < 1.1, "{name}: window {window}, {operators}, {streams} streams: {ratio}");
        }
    }
}

#[test]
fn an_epoch_of_a_mix_decompresses_little_more_than_the_content_on_any_fleet() {
    let runs = |files: u32, blocks: u32| vec![(blocks, false); files as usize];
    let points = |files: u32, blocks: u32| vec![(blocks, true); files as usize];
    let cases: [(&str, Mixed, &[f64]); 6] = [
        ("equal", vec![runs(60, 60), runs(60, 60)], &[1.0, 1.0]),
        ("unequal", vec![runs(80, 100), runs(20, 60), points(10, 60)], &[6.0, 3.0, 1.0]),
        ("one with runs", vec![points(40, 60), runs(40, 60)], &[1.0, 1.0]),
        ("without runs", vec![points(100, 60), points(20, 60)], &[3.0, 1.0]),
        ("few", vec![runs(4, 800), runs(6, 500)], &[1.0, 1.0]),
        ("a small one", vec![runs(100, 60), runs(1, 50)], &[1.0, 0.05]),
    ];
    for (name, datasets, weights) in cases {
        let manifest = manifest_of_mix(&datasets);
        for stop in ["all", "first", "restart"] {
            for (window, operators, streams) in [
                (60, "batch: {size: 8}", 1),
                (60, "batch: {size: 8}", 8),
                (20_000, "batch: {size: 8}", 1),
                (0, "batch: {size: 8}", 1),
                (60, "repeat: {count: 3}, batch: {size: 8}", 2),
                (0, "repeat: {count: 3}, batch: {size: 8}", 2),
                (60, "pack: {columns: [t], length: 64, size: 4}", 2),
            ] {
                let pipeline = pipeline_of_mix(weights, stop, window, operators);
                let ratio = decompressed(&manifest, &pipeline, streams);
                assert!(
                    ratio < 1.1,
                    "{name}, stop {stop}: window {window}, {operators}, {streams} streams: {ratio}"
                );
            }
        }
    }
}

#[test]
fn a_mix_has_lanes_for_many_workers_unless_a_dataset_has_few_runs() {
    let runs = |files: u32, blocks: u32| vec![(blocks, false); files as usize];
    let points = |files: u32, blocks: u32| vec![(blocks, true); files as usize];
    let cases: [(&str, Mixed, &[f64], u32); 6] = [
        ("equal", vec![runs(64, 100), runs(64, 100)], &[1.0, 1.0], 16),
        ("without long runs", vec![points(64, 100), points(64, 100)], &[1.0, 1.0], 0),
        ("a tiny run", vec![points(1_000, 100), runs(1, 2)], &[1.0, 0.00002], 0),
        ("a small run", vec![points(1_000, 100), runs(1, 50)], &[1.0, 0.0005], 64),
        ("a run of a tenth", vec![runs(64, 100), runs(1, 700)], &[1.0, 0.1], 1),
        ("a run of a hundredth", vec![runs(64, 100), runs(1, 64)], &[1.0, 0.01], 4),
    ];
    for (name, datasets, weights, expected) in cases {
        let summary = manifest_of_mix(&datasets).summary();
        let layout = Layout::new(&pipeline_of_mix(weights, "all", 60, "batch: {size: 8}"), &summary, 1, 1);
        assert_eq!((layout.runs.lanes, layout.runs.group_splits), (expected, 0), "{name}");
    }
    let summary = manifest_of_mix(&[runs(100, 10), runs(100, 10)]).summary();
    let pipeline = pipeline_of_mix(&[1.0, 1.0], "all", 0, "batch: {size: 8}");
    let layout = Layout::new(&pipeline, &summary, 1, 1);
    let groups: BTreeSet<_> =
        splits(&layout).iter().filter_map(|split| layout.run_key(&summary, *split)).collect();
    assert_eq!(groups.len(), 10, "a group has ten runs of each dataset");
}

#[test]
fn a_round_is_not_changed_by_long_runs_if_the_operator_sets_it() {
    for shards in [vec![(400, false); 8], vec![(40, false), (40, true), (40, true), (40, false), (40, true)]]
    {
        let summary = manifest(&shards).summary();
        for window in [0, 400, 2_000] {
            let pipeline = pipeline(window, "pack: {columns: [t], length: 64, size: 4, window: 500}");
            assert_eq!(Layout::new(&pipeline, &summary, 1, 2).split_rows, 500, "{shards:?}, window {window}");
        }
    }
}

#[test]
fn a_window_is_not_divided_by_a_round_that_no_operator_sets() {
    let manifest = manifest(&[(4_000, true); 8]);
    let layout = |window| {
        let pipeline = pipeline(window, "pack: {columns: [t], length: 64, size: 4}");
        Layout::new(&pipeline, &manifest.summary(), 1, 1)
    };
    assert_eq!((layout(0).split_rows, layout(1_200).split_rows), (1_024, 1_200));
}

#[test]
fn equal_runs_have_lanes_for_many_workers() {
    let manifest = manifest(&vec![(400, false); 64]);
    let layout = Layout::new(&pipeline(60, "batch: {size: 8}"), &manifest.summary(), 1, 1);
    assert_eq!(
        (layout.runs.lanes, layout.runs.other_splits),
        (32, 0),
        "the memory of the decoders is limited"
    );
    let keys: BTreeSet<_> =
        splits(&layout).iter().filter_map(|split| layout.run_key(&manifest.summary(), *split)).collect();
    assert_eq!(keys.len(), 32);
    let plain = Layout::new(&pipeline(0, "batch: {size: 8}"), &manifest.summary(), 1, 1);
    assert!(plain.runs.is_sequential);
    let keys: BTreeSet<_> =
        splits(&plain).iter().filter_map(|split| plain.run_key(&manifest.summary(), *split)).collect();
    assert_eq!(keys.len(), 64);
}

#[test]
fn datasets_without_long_runs_have_no_keys() {
    let manifest = manifest(&[(40, true), (1, false)]);
    let dataset = manifest.summary();
    assert!(dataset.runs.is_empty());
    let layout = Layout::new(&pipeline(60, "batch: {size: 8}"), &dataset, 1, 1);
    assert!(layout.runs.is_empty());
    assert!(splits(&layout).iter().all(|split| layout.run_key(&dataset, *split).is_none()));
}

#[test]
fn many_runs_form_groups() {
    let runs: Vec<Range<u64>> = (0..10_000).map(|run| run * 50..run * 50 + 40).collect();
    let summary = RunSummary::new(&runs, 1);
    assert_eq!((summary.group_starts.len(), summary.rows), (3_334, 400_000));
    assert_eq!(
        [0, 139, 140, 150, 499_989, 499_990].map(|row| summary.group_of(row)),
        [Some(0), Some(0), None, Some(1), Some(3_333), None]
    );
    assert_eq!(summary.lane_rows, [400_000, 200_000, 100_000, 50_000, 25_000, 12_480, 6_240]);
}

proptest! {
    #[test]
    fn lanes_differ_by_at_most_one_run(rows in prop::collection::vec(1u64..1_000, 1..60), lanes in 1usize..8) {
        let mut sums = vec![0; lanes];
        for (lane, rows) in deal(&rows, lanes).into_iter().zip(&rows) {
            sums[lane] += rows;
        }
        let largest = rows.iter().max().copied().unwrap_or(0);
        prop_assert!(sums.iter().max().unwrap() - sums.iter().min().unwrap() <= largest);
    }

    #[test]
    fn a_pass_with_lanes_contains_every_row_once(
        shards in prop::collection::vec((1u32..30, any::<bool>()), 1..12), window in 1u64..2_000, batch in 1u32..200,
        streams in 1u32..6, repeat in 1u32..4,
    ) {
        let manifest = manifest(&shards);
        let pipeline = pipeline(window, &format!("repeat: {{count: {repeat}}}, batch: {{size: {batch}}}"));
        let layout = Layout::new(&pipeline, &manifest.summary(), 1, streams);
        let sequence = Sequence::new(&pipeline, &manifest, &layout);
        let rows = rows_of_epoch(&sequence, &layout);
        let ids: BTreeSet<(u32, u64)> = rows.iter().map(|row| (row.pass, row.row_id)).collect();
        prop_assert_eq!((rows.len() as u64, ids.len() as u64), (layout.epoch_rows(), layout.epoch_rows()));
    }

    #[test]
    fn a_mix_with_lanes_contains_every_row_once_and_a_change_preserves_earlier_rows(
        datasets in prop::collection::vec(prop::collection::vec((1u32..30, any::<bool>()), 1..6), 2..4),
        window in 1u64..500, batch in 1u32..50, streams in 1u32..4, repeat in 1u32..3, restart: bool,
        weights in prop::collection::vec(0.1f64..9.0, 3), rounds in prop::collection::vec(0u64..40, 0..3), cut: u64,
    ) {
        let manifest = manifest_of_mix(&datasets);
        let weights = &weights[..datasets.len()];
        let operators = format!("repeat: {{count: {repeat}}}, batch: {{size: {batch}}}");
        let pipeline = pipeline_of_mix(weights, if restart { "restart" } else { "all" }, window, &operators);
        let layout = Layout::new(&pipeline, &manifest.summary(), 1, streams);
        // A change takes effect at the start of a round.
        let rounds: BTreeSet<u64> = rounds.into_iter().collect();
        let starts = rounds.iter().filter_map(|round| layout.start_after_round(0, *round));
        let changed_weights = |number: usize| weights.iter().map(|weight| weight + number as f64).collect();
        let changes: Vec<MixChange> = starts
            .enumerate()
            .map(|(number, (pass, offset))| MixChange { pass, offset, weights: changed_weights(number + 1) })
            .collect();
        let before = Sequence::new(&pipeline, &manifest, &layout);
        let after = before.with_mix_changes(&changes);
        let (rows, changed) = (rows_of_epoch(&before, &layout), rows_of_epoch(&after, &layout));
        for rows in [&rows, &changed] {
            let ids: BTreeSet<(u32, u64)> = rows.iter().map(|row| (row.pass, row.row_id)).collect();
            prop_assert_eq!((rows.len() as u64, ids.len() as u64), (layout.epoch_rows(), layout.epoch_rows()));
        }
        let first = changes.first().map_or(u64::MAX, |change| u64::from(change.pass) * layout.dataset_rows + change.offset);
        let same = first.min(rows.len() as u64) as usize;
        prop_assert_eq!(&rows[..same], &changed[..same]);
        let cut = cut % layout.dataset_rows;
        let range = after.rows(&after.pass(0), cut..layout.dataset_rows);
        prop_assert_eq!(&range[..], &changed[cut as usize..layout.dataset_rows as usize]);
    }
}
