//! One sample of each message, with all fields set.

mod history;
mod view;

use std::collections::BTreeMap;

use feedline_data::checkpoint::StepId;
use feedline_data::checkpoint::{OpenRange, Position};
use feedline_data::ids::{JobId, SessionId, TaskId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::{Block, Defect, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::memory::{MemoryAccount, MemoryUsage};
use feedline_data::messages::*;
use feedline_data::mix::MixChange;
use feedline_data::pipeline;
use feedline_data::pipeline::*;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_data::tenants::TenantReads;
use feedline_data::urls::UrlPolicy;

pub(crate) use self::history::{group_positions, step};
pub(crate) use self::view::{bottleneck_kinds, cluster_view};

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
        credentials: Some("imagenet".to_owned()),
        mix: None,
    }
}

pub(crate) fn mixed() -> Source {
    let part = |weight| MixPart { weight, source: source() };
    Source::mixed(Mix { parts: vec![part(0.25), part(3.0)], stop: MixStop::Restart })
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
        index_only: false,
        weight: 2.5,
        elastic: true,
    }
}

pub(crate) fn position() -> Position {
    Position {
        version: 1,
        pipeline: "aa".to_owned(),
        dataset: "bb".to_owned(),
        order: OrderMode::Relaxed,
        virtual_consumers: 16,
        streams: vec![at(0, 7), at(1, 0)],
        open_ranges: vec![OpenRange { epoch: 0, start_row: 3, end_row: 5 }],
        mix: vec![mix_change()],
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
        mix_changes: vec![mix_change(), mix_change()],
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
    let index = ShardIndex { blocks: blocks.iter().enumerate().map(block).collect(), schema, defects };
    Shard { object: object(number), index }
}

pub(crate) fn manifest() -> Manifest {
    let shards = vec![shard(0, &[(3, true), (2, false), (4, true)]), shard(1, &[]), shard(2, &[(9, false)])];
    Manifest { schema: schema(), shards }
}

fn stats() -> Vec<OperatorStats> {
    vec![OperatorStats {
        name: "decode".into(),
        rows_in: 1,
        rows_out: 2,
        bytes_in: 3,
        bytes_out: 4,
        cpu_ns: 5,
        busy_ns: 6,
        wait_input_ns: 7,
        wait_output_ns: 8,
        latency_ns: 9,
        queue_bytes: 10,
        parallelism: Some(11),
    }]
}

fn store() -> StoreStats {
    StoreStats { requests: 1, bytes: 2, wait_ns: 3, distinct_shards: 4, distinct_shard_bytes: 5 }
}

fn cpu() -> ProcessCpu {
    ProcessCpu { process_ns: 6, transport_ns: 7 }
}

fn worker_job_stats() -> WorkerJobStats {
    WorkerJobStats {
        job: JobId(1),
        operators: stats(),
        store: store(),
        memory_wait_ns: 9,
        peak_rss_bytes: 1 << 30,
        elapsed_ns: 8,
        cpu: cpu(),
        encodings: vec![EncodingStats {
            operators_before: 1,
            encoding: CacheEncoding::Indexed,
            rows: 2,
            plain_bytes: 3,
            encoded_bytes: 4,
            encode_ns: 5,
            plain_ns: 6,
            encoded_ns: 7,
        }],
    }
}

pub(crate) fn worker_report() -> WorkerReport {
    let indexes = manifest().shards.into_iter().map(|shard| shard.index).collect();
    let outcomes =
        [Ok(TaskOutput::Listed(vec![object(1)])), Ok(TaskOutput::Indexed(indexes)), Err("no".to_owned())];
    let result = |(id, outcome)| TaskResult { id: TaskId(id), outcome };
    WorkerReport {
        worker: WorkerId(u64::MAX),
        address: "http://10.0.0.7:7071".to_owned(),
        tls_name: Some("workers.feedline".to_owned()),
        pool: "spot".to_owned(),
        cores: 32,
        memory_bytes: 1 << 36,
        machine: "some CPU".to_owned(),
        nic_bytes_per_s: 1_250_000_000,
        plan_revision: Revision { incarnation: 9, number: 10 },
        computed: vec![(JobId(1), split())],
        memory_full: true,
        draining: true,
        tasks: (0..).zip(outcomes).map(result).collect(),
        elapsed_ns: 1 << 40,
        cpu: cpu(),
        stats: vec![worker_job_stats()],
        caches: CacheTier::ALL
            .map(|tier| TierCapacity { tier, capacity_bytes: 1 << 40, used_bytes: 7 })
            .into(),
        memory: memory_usage(),
    }
}

/// One entry for each account.
pub(crate) fn memory_usage() -> Vec<MemoryUsage> {
    MemoryAccount::ALL.map(|account| MemoryUsage { account, used_bytes: 1 << account as u64 }).into()
}

pub(crate) fn worker_plan() -> WorkerPlan {
    WorkerPlan {
        revision: Revision { incarnation: 9, number: 11 },
        leases: vec![Lease { job: JobId(1), split: split(), start_offset: 12 }],
        tasks: vec![
            Task { id: TaskId(4), source: source(), shards: None, reads: TenantReads::default() },
            Task {
                id: TaskId(5),
                source: source(),
                shards: Some(vec![object(0), object(1)]),
                reads: tenant_reads(),
            },
            Task {
                id: TaskId(6),
                source: source(),
                shards: Some(Vec::new()),
                reads: TenantReads { credentials: Some(Vec::new()), ..TenantReads::default() },
            },
        ],
        lease_ms: 3000,
        cores: 2,
        allocations: vec![
            JobAllocation::unlimited(JobId(2)),
            JobAllocation {
                job: JobId(1),
                cores: 0.75,
                max_cores: 1.5,
                operator_limits: vec![("decode_image".to_owned(), 3)],
                read_concurrency: 40,
                prefetch_bytes: 1 << 33,
                cache: Some(CacheDecision {
                    operators_before: 2,
                    tier: CacheTier::Store,
                    encoding: CacheEncoding::Pixels,
                }),
            },
        ],
        tenants: vec![
            TenantCacheQuota {
                tenant: "vision".to_owned(),
                cache_bytes: Some(0),
                jobs: vec![JobId(1), JobId(2)],
            },
            TenantCacheQuota { tenant: "text".to_owned(), cache_bytes: None, jobs: Vec::new() },
        ],
        ticket_key: vec![1, 255, 0],
        mixes: vec![JobMixChanges { job: JobId(1), changes: vec![mix_change()] }],
    }
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
    }
}

fn delivered() -> ConsumerStats {
    ConsumerStats { rows: 1, batches: 2, bytes: 3, stall_ns: 4, step_ns: 5, copy_ns: 7, network_bytes: 6 }
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
        step_queries: vec![step(), StepId { epochs: None, batches_per_stream: 0, extra_batches: 0 }],
    }
}

pub(crate) fn job_states() -> Vec<JobState> {
    vec![
        JobState::Preparing { indexed: 1, shards: 2, workers: 3 },
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
        dataset: manifest().summary(),
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
    }
}
