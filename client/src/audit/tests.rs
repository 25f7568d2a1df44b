//! Audits of whole jobs and of parts between two positions.

use feedline_data::checkpoint::POSITION_VERSION;
use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
use feedline_data::order::{BlockTable, PassOrder};
use feedline_data::pipeline::{OrderMode, PipelineId, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::*;
use crate::testing::layout;

const SEED: u64 = 5;
const WINDOW: u64 = 16;

fn manifest(rows: u64) -> Manifest {
    let mut schema = Schema::default();
    schema.set("x", ColumnType::Scalar(ScalarType::Int64));
    let block = |rows: u32| Block { rows, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() };
    let mut blocks = vec![block(7); rows as usize / 7];
    blocks.extend((!rows.is_multiple_of(7)).then(|| block((rows % 7) as u32)));
    let shard = Shard::new(
        ShardRef {
            url: "file:///d/0".to_owned(),
            size_bytes: 10,
            version: "1".to_owned(),
            ..ShardRef::default()
        },
        ShardIndex { blocks, schema: Some(schema.clone()), defects: Vec::new(), ..ShardIndex::default() },
    );
    Manifest { schema, shards: vec![shard] }
}

fn job() -> Layout {
    Layout { passes: 2, epochs: 2, ..layout(45, 4, 3, 2) }
}

fn position(streams: &[(u32, u64)], open: &[OpenRange]) -> Position {
    Position {
        version: POSITION_VERSION,
        pipeline: PipelineId::default(),
        dataset: String::new(),
        content: Default::default(),
        order: OrderMode::Deterministic,
        virtual_consumers: streams.len() as u32,
        streams: streams.iter().map(|&(epoch, row)| StreamPosition { epoch, row }).collect(),
        open_ranges: open.to_vec(),
        mix: Vec::new(),
        growth: None,
        ranges: None,
        split_rows: None,
    }
}

/// The origin of a batch with some rows of a split.
fn info(layout: &Layout, split: SplitRef, offsets: Range<u32>) -> BatchInfo {
    let table = BlockTable::new(&manifest(layout.dataset_rows));
    let row_id = |offset: u32| {
        let index = layout.split_range(split).start + u64::from(offset);
        let pass = split.epoch * layout.passes + (index / layout.dataset_rows) as u32;
        let index = index % layout.dataset_rows;
        PassOrder::new(&table, SEED, pass, WINDOW).rows(&table, index..index + 1)[0].row_id
    };
    let row_ids = offsets.clone().map(row_id).collect();
    BatchInfo { inputs: vec![(split, offsets)], row_ids, ..BatchInfo::default() }
}

fn splits(layout: &Layout) -> Vec<SplitRef> {
    let of =
        |epoch, stream| (0..layout.splits(stream)).map(move |ordinal| SplitRef { epoch, ordinal, stream });
    (0..layout.epochs)
        .flat_map(|epoch| (0..layout.streams).flat_map(move |stream| of(epoch, stream)))
        .collect()
}

fn audit(layout: &Layout, start: Option<&Position>) -> Audit {
    let pipeline = Pipeline::builder("p").source(Source::text("d")).seed(SEED).shuffle(WINDOW).batch(4);
    let pipeline = pipeline.build().unwrap();
    Audit::new(layout.clone(), &manifest(layout.dataset_rows), &pipeline, start)
}

#[test]
fn a_whole_job_is_exact() {
    let layout = job();
    let mut audit = audit(&layout, None);
    for split in splits(&layout) {
        audit.add(&info(&layout, split, 0..layout.split_len(split)));
    }
    let report = audit.report(None);
    assert!(report.is_exact(), "{report:?}");
    assert_eq!(report, AuditReport { expected: 180, once: 180, ..AuditReport::default() });
}

#[test]
fn missing_repeated_and_invalid_rows_are_counted() {
    let layout = job();
    let mut audit = audit(&layout, None);
    for split in splits(&layout) {
        audit.add(&info(
            &layout,
            split,
            u32::from(split.ordinal == 1 && split.stream == 2)..layout.split_len(split),
        ));
    }
    let first = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
    audit.add(&info(&layout, first, 3..5));
    audit.add(&BatchInfo { inputs: vec![(first, 0..1)], row_ids: vec![1000], ..BatchInfo::default() });
    let report = audit.report(None);
    assert_eq!(
        report,
        AuditReport {
            expected: 180,
            once: 176,
            missing: 2,
            repeated: 2,
            unexpected: 1,
            ..AuditReport::default()
        }
    );
    assert!(!report.is_exact());
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(json, r#"{"expected":180,"once":176,"skipped":0,"missing":2,"repeated":2,"unexpected":1}"#);
}

#[test]
fn an_audit_covers_the_rows_between_two_positions() {
    let layout = job();
    let (start, stop) =
        (position(&[(0, 8), (0, 12), (0, 29)], &[]), position(&[(1, 0), (1, 4), (0, 30)], &[]));
    let mut audit = audit(&layout, Some(&start));
    for split in splits(&layout) {
        let at = |position: &Position| {
            let StreamPosition { epoch, row } = position.streams[split.stream as usize];
            let start = split.ordinal * layout.split_rows;
            match split.epoch.cmp(&epoch) {
                std::cmp::Ordering::Less => layout.split_len(split),
                std::cmp::Ordering::Equal => {
                    row.saturating_sub(start).min(layout.split_len(split).into()) as u32
                }
                std::cmp::Ordering::Greater => 0,
            }
        };
        audit.add(&info(&layout, split, at(&start)..at(&stop)));
    }
    let report = audit.report(Some(&stop));
    assert_eq!(report, AuditReport { expected: 22 + 18 + 4 + 1, once: 45, ..AuditReport::default() });
    assert_eq!(audit.report(Some(&start)).unexpected, 45);
}

#[test]
fn open_ranges_of_a_relaxed_job_count_when_they_are_delivered() {
    let layout = layout(40, 4, 1, 2);
    let open = |from, to| OpenRange { epoch: 0, start_row: from, end_row: to };
    let (start, stop) =
        (position(&[(0, 16)], &[open(3, 8)]), position(&[(0, 32)], &[open(5, 8), open(26, 32)]));
    let mut audit = audit(&layout, Some(&start));
    let split = |ordinal| SplitRef { epoch: 0, ordinal, stream: 0 };
    for (ordinal, offsets) in [(0, 3..5), (2, 0..8), (3, 0..2)] {
        audit.add(&info(&layout, split(ordinal), offsets));
    }
    let report = audit.report(Some(&stop));
    assert_eq!(report, AuditReport { expected: 12, once: 12, ..AuditReport::default() });
}
