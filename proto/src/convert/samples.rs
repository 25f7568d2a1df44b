//! One sample of each message, with all fields set.

mod graph;
mod growth;
mod history;
mod view;
mod worker;

use std::collections::BTreeMap;

use feedline_data::checkpoint::StepId;
use feedline_data::checkpoint::{OpenRange, Position};
use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::compression::{AccessPoint, Codec, ShardCompression, SourceCompression};
use feedline_data::growth::KnownGrowth;
use feedline_data::ids::{JobId, SessionId, TaskId, WorkerId};
use feedline_data::layout::{DeliveredPrefix, Layout, SplitRef, StreamPosition};
use feedline_data::manifest::{
    Block, ChecksumAlgorithm, ColumnKind, ColumnNotes, DatasetSummary, Defect, ListPage, ListPages, Manifest,
    RoundedColumn, Shard, ShardDigest, ShardIndex, ShardRef, ShardValue, StoreChecksum, WidenedColumn,
};
use feedline_data::memory::{MemoryAccount, MemoryUsage};
use feedline_data::messages::*;
use feedline_data::mix::MixChange;
use feedline_data::pipeline;
use feedline_data::pipeline::*;
use feedline_data::runs::RunLayout;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_data::tenants::TenantReads;
use feedline_data::urls::UrlPolicy;

use self::graph::graph;
pub(crate) use self::history::{group_positions, step};
pub(crate) use self::view::{bottleneck_kinds, cluster_view};
use self::worker::{cpu, stats, store};
pub(crate) use self::worker::{memory_usage, worker_plan, worker_report};

/// Operators with parameters of every serde encoding: numbers, sizes, lists, maps, enums and functions.
fn operators() -> Vec<OperatorKind> {
    let column = || "image".to_owned();
    vec![
        OperatorKind::RandomResizedCrop(RandomResizedCrop {
            column: column(),
            size: [224, 192],
            scale: [0.08, 1.0],
            ratio: [0.75, 4.0 / 3.0],
        }),
        OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip { column: column(), p: 0.25 }),
        OperatorKind::Normalize(Normalize {
            column: column(),
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            dtype: ScalarType::Float16,
            layout: pipeline::TensorLayout::Chw,
        }),
        OperatorKind::Rename(Rename { columns: BTreeMap::from([("x".to_owned(), column())]) }),
        OperatorKind::Cache(Cache { tier: CacheTier::Disk }),
        OperatorKind::Map(MapFunction(function())),
        OperatorKind::FilterFunction(FilterFunction(Function::new("m:keep"))),
        OperatorKind::SampleNeighbors(graph::sample_neighbors()),
        OperatorKind::Batch(BatchParams { size: 128, remainder: Remainder::Carry }),
    ]
}

fn function() -> Function {
    Function {
        code: Some("gA==".to_owned()),
        path: vec!["/srv/code".to_owned()],
        version: Some("7".to_owned()),
        columns: vec!["image".to_owned()],
        environment: Some(FunctionEnvironment {
            python: Some("3.11".to_owned()),
            packages: BTreeMap::from([("numpy".to_owned(), "2.4".to_owned())]),
        }),
        timeout_s: 5,
        memory: 1 << 29,
        rows: Some(64),
        seeded: true,
        ..Function::new("package.module:score")
            .output("score", FunctionOutput::numbers(ScalarType::Float16, [2, 3]))
            .output("words", FunctionOutput::list(ElementType::Text))
    }
}

pub(crate) fn source() -> Source {
    Source {
        url: vec!["s3://bucket/train/".to_owned(), "file:///data/*.tar".to_owned()],
        format: Format::WebDataset,
        features: BTreeMap::from([("image".to_owned(), "jpg".to_owned())]),
        optional: ["image".to_owned()].into(),
        credentials: Some("imagenet".to_owned()),
        kafka: None,
        mix: None,
        compression: Some(SourceCompression::Gzip),
        partitions: Some(Partitions::Hive),
        config: Some("en".to_owned()),
        split: Some("train".to_owned()),
        seeds: Some("valid".to_owned()),
        shard_filter: None,
        graph: None,
    }
}

pub(crate) fn mixed() -> Source {
    let part = |weight| MixPart { weight, source: source() };
    let kafka = Source::kafka("kafka://broker:9092").with_kafka(KafkaOptions::topic("events"));
    let parts = vec![part(0.25), part(3.0), MixPart { weight: 1.0, source: kafka }];
    Source::mixed(Mix { parts, stop: MixStop::Restart })
}

pub(crate) fn pipeline() -> Pipeline {
    let kinds = operators().into_iter().enumerate();
    Pipeline {
        name: "train".to_owned(),
        source: source(),
        seed: u64::MAX,
        shuffle: Shuffle { window: 1 << 20 },
        order: OrderMode::Relaxed,
        on_error: OnError::Skip,
        operators: kinds
            .map(|(index, kind)| Operator { kind, parallelism: (index % 2 == 1).then_some(index as u32) })
            .collect(),
    }
}

pub(crate) fn spec() -> JobSpec {
    JobSpec {
        tenant: "vision".to_owned(),
        name: "run-1".to_owned(),
        pipeline: pipeline(),
        epochs: 90,
        virtual_consumers: 16,
        consumers: 4,
        start: Some(position()),
        audit: true,
        reindex: true,
        accept_reuploaded: true,
        accept_changed_pipeline: true,
        index_only: false,
        weight: 2.5,
        elastic: true,
    }
}

pub(crate) fn position() -> Position {
    Position {
        version: 1,
        pipeline: "aa seed=3".to_owned().into(),
        dataset: "bb".to_owned(),
        content: "cc".to_owned().into(),
        order: OrderMode::Relaxed,
        virtual_consumers: 16,
        streams: vec![at(0, 7), at(1, 0)],
        open_ranges: vec![OpenRange { epoch: 0, start_row: 3, end_row: 5 }],
        mix: vec![mix_change()],
        growth: Some(Box::new(growth::position())),
        ranges: Some(Box::new(growth::ranges())),
        split_rows: Some(1 << 40),
    }
}

pub(crate) fn mix_change() -> MixChange {
    MixChange { pass: 2, offset: 1 << 40, weights: vec![0.25, 3.0] }
}

fn at(epoch: u32, row: u64) -> StreamPosition {
    StreamPosition { epoch, row }
}

pub(crate) fn split() -> SplitRef {
    SplitRef { epoch: 2, ordinal: 1 << 40, stream: 3 }
}

pub(crate) fn layout() -> Layout {
    Layout {
        dataset_rows: 1281167,
        passes: 2,
        epochs: 90,
        streams: 16,
        batch_rows: 128,
        remainder: Remainder::Drop,
        changes_rows: true,
        split_rows: 1024,
        group_rows: 256,
        coordinated: true,
        runs: RunLayout {
            lanes: 8,
            lane_splits: 4,
            other_splits: 3,
            is_sequential: true,
            group_splits: 1 << 40,
        },
        mix_changes: vec![mix_change(), mix_change()],
        unbounded: true,
        indivisible: true,
    }
}

pub(crate) fn schema() -> Schema {
    let list = ColumnType::List(Box::new(ColumnType::List(Box::new(ColumnType::Utf8))));
    Schema::new([
        ("image", ColumnType::Image),
        ("bytes", ColumnType::Binary),
        ("label", ColumnType::Scalar(ScalarType::Bool)),
        ("words", list),
        ("x", ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![3, 224, 0] }),
    ])
}

fn object(number: u64) -> ShardRef {
    ShardRef {
        url: format!("s3://bucket/train/{number}.tar"),
        size_bytes: 1 << 33,
        version: format!("etag-{number}"),
        part: 3,
        values: vec![
            ShardValue::int64("label", -7),
            ShardValue { name: "year".to_owned(), integer: None, text: None },
        ]
        .into(),
    }
}

fn compression() -> ShardCompression {
    let point = |number: u64| AccessPoint {
        bit_offset: number * 2_000_003,
        content_offset: number << 20,
        state: vec![number as u8; number as usize],
    };
    let points = (1..4).map(point).collect();
    ShardCompression {
        codec: Codec::Gzip,
        content_bytes: 4 << 20,
        readable_bytes: 1 << 20,
        decoder_bytes: 7 << 20,
        points,
    }
}

/// A shard with these blocks: (rows, whether the index has the sizes of rows).
fn shard(number: u64, blocks: &[(u32, bool)]) -> Shard {
    let block = |(number, &(rows, sized)): (usize, &(u32, bool))| Block {
        rows,
        offset: number as u64 * 1_000_000,
        bytes: 999_999,
        group: number as u32,
        row_bytes: if sized { (0..rows).map(|row| 1000 + row).collect() } else { Vec::new() },
    };
    let defects = vec![Defect { offset: 17, reason: "the record is truncated".to_owned() }];
    let schema = (!blocks.is_empty()).then(schema);
    let int64 = || ColumnType::Scalar(ScalarType::Int64);
    let widened =
        WidenedColumn { column: "x".to_owned(), from: int64(), to: ColumnType::List(Box::new(int64())) };
    let columns = ColumnNotes {
        untyped: vec!["words".to_owned()],
        widened: vec![widened],
        rounded: vec![RoundedColumn { column: "t".to_owned(), reason: "nanoseconds are rounded".to_owned() }],
        kinds: vec![ColumnKind { column: "t".to_owned(), kind: "dates".to_owned() }],
        ignored: vec!["meta".to_owned()],
        is_fixed: true,
    };
    let blocks = blocks.iter().enumerate().map(block).collect();
    let compression = (number == 2).then(compression);
    let page = |number: u64| ListPage {
        offset: 4 + number * 1_048_000,
        stored_bytes: 1_048_000,
        decompressed_bytes: 1_048_576,
        rows_before: 255 * number,
        begins_within_row: number > 0,
    };
    let pages = (0..number).map(page).collect();
    let list_pages = vec![ListPages { group: 3, column: 1, dictionary_bytes: 77, pages }];
    let graph = Some(Box::new(graph()));
    let index = ShardIndex { blocks, schema, defects, columns, compression, list_pages, graph };
    let parts = ShardDigest::Parts([2; 32]);
    let checksum = StoreChecksum::new(ChecksumAlgorithm::Crc64Nvme, 3, &[4; 8]);
    let digests = [None, Some(ShardDigest::Whole([1; 32])), Some(parts.with_checksum(checksum))];
    Shard { object: object(number), index, digest: digests[number as usize % 3] }
}

pub(crate) fn manifest() -> Manifest {
    let shards = vec![shard(0, &[(3, true), (2, false), (4, true)]), shard(1, &[]), shard(2, &[(9, false)])];
    Manifest { schema: schema(), shards }
}

pub(crate) fn consumer_report() -> ConsumerReport {
    ConsumerReport {
        job: JobId(1),
        consumer: 3,
        session: SessionId(77),
        plan_revision: Revision::default(),
        positions: vec![(0, at(1, 2)), (4, at(1, 5))],
        open_splits: vec![(split(), 8)],
        wanted_splits: 4,
        unreachable: vec![(split(), WorkerId(6))],
        batch_error: Some("shard x at 17: bad jpeg".to_owned()),
        stats: delivered(),
        slots: SlotReport {
            claims: vec![SlotPosition { stream: 4, generation: 9, position: at(1, 5), stopped: true }],
            leaving: true,
            slot_ns: 1_000,
        },
        history: HistoryReport { history: Some(Box::new(history::history())), is_last: true },
        known_growth: KnownGrowth { rounds: 7, partitions: 2 },
    }
}

fn delivered() -> ConsumerStats {
    ConsumerStats {
        rows: 1,
        batches: 2,
        bytes: 3,
        stall_ns: 4,
        step_ns: 5,
        copy_ns: 7,
        network_bytes: 6,
        skipped_rows: 8,
        newest_ms: 8,
    }
}

pub(crate) fn consumer_plan() -> ConsumerPlan {
    let named =
        WorkerAddress { url: "https://a:1".to_owned(), tls_name: Some("workers.feedline".to_owned()) };
    let workers = vec![(WorkerId(6), named), (WorkerId(7), WorkerAddress::new("http://b:1"))];
    ConsumerPlan {
        revision: Revision { incarnation: 1, number: 2 },
        state: JobState::Running,
        layout: Some(layout()),
        streams: vec![(1, at(0, 9))],
        splits: vec![PlannedSplit { split: split(), start_offset: 3, workers }],
        exhausted: true,
        max_splits: 64,
        consumers: 3,
        ticket: "feedline-ticket-1.x.y".to_owned(),
        slots: Some(vec![SlotGrant { stream: 4, generation: 9, position: at(1, 5), release: true }]),
        has_rows: true,
        step_queries: vec![step(), StepId { epochs: None, batches_per_stream: 0, extra_batches: 0 }],
        growth: Some(Box::new(growth::update())),
    }
}

pub(crate) fn job_states() -> Vec<JobState> {
    vec![
        JobState::Preparing { indexed: 1, shards: 2, read_bytes: 4, total_bytes: 5, workers: 3 },
        JobState::Running,
        JobState::Completed,
        JobState::Failed("why".to_owned()),
        JobState::Cancelled,
    ]
}

pub(crate) fn job_details() -> JobDetails {
    JobDetails {
        job: JobId(1),
        pipeline: pipeline(),
        layout: layout(),
        source_key: "cc".to_owned(),
        dataset: DatasetSummary { batch_bytes: Some(1 << 27), ..manifest().summary() },
        audit: true,
        cache: Some(CacheDecision {
            operators_before: 1,
            tier: CacheTier::Memory,
            encoding: CacheEncoding::AsIs,
        }),
        reads: tenant_reads(),
    }
}

fn tenant_reads() -> TenantReads {
    TenantReads {
        urls: UrlPolicy::new(["s3://bucket/a", "/data"]).expect("they are prefixes"),
        credentials: Some(vec!["vision".to_owned()]),
    }
}

pub(crate) fn job_status() -> JobStatus {
    JobStatus {
        job: JobId(1),
        tenant: "vision".to_owned(),
        name: "run-1".to_owned(),
        state: JobState::Completed,
        epochs: 90,
        consumers: 4,
        dataset: Some(manifest().summary()),
        layout: Some(layout()),
        position: Some(position()),
        operators: stats(),
        store: store(),
        worker_cpu: vec![(WorkerId(6), cpu())],
        delivered: delivered(),
        worker_peak_rss_bytes: vec![(WorkerId(6), 1 << 30)],
        coordinator_peak_rss_bytes: 1 << 26,
        workers: 3,
        settled: true,
        slot_owners: vec![(0, 3), (7, 1)],
        source_error: Some("the brokers do not answer".to_owned()),
    }
}
