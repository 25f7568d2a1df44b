//! Measures the leases per second of the state machine alone. One worker computes and one consumer delivers short epochs
//! with 512 streams.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedline_cluster::records::Record;
use feedline_cluster::{Cluster, ClusterSettings, Input, Ready, Reply};
use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobSpec, ProcessCpu, Revision, TaskOutput, TaskResult,
    WorkerPlan, WorkerReport,
};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

const STREAMS: u32 = 512;
const ROWS: u32 = 29_000;
const CORES: u32 = 2;
/// Number of splits of each stream that the consumer requests ahead.
const WANTS: u32 = 4;

/// The state machine with a running job, and the last plans of its worker and consumer.
struct Harness {
    cluster: Cluster,
    job: JobId,
    request: u64,
    now: u64,
    leases: u64,
    computed: Vec<(JobId, SplitRef)>,
    tasks: Vec<TaskResult>,
}

impl Harness {
    fn new() -> Self {
        let mut harness = Self {
            cluster: Cluster::new(ClusterSettings::default(), 1),
            job: JobId(1),
            request: 0,
            now: 0,
            leases: 0,
            computed: Vec::new(),
            tasks: Vec::new(),
        };
        let spec = JobSpec { epochs: u32::MAX, virtual_consumers: STREAMS, ..JobSpec::new(pipeline()) };
        let manifest = Arc::new(manifest());
        let open = Input::OpenJob {
            request: 0,
            spec: Box::new(spec),
            saved_index: Some(Arc::clone(&manifest)).into(),
        };
        harness.step(open);
        let plan = harness.report_worker();
        let shards = manifest.shards.iter().map(|shard| shard.object.clone()).collect();
        harness.tasks = vec![TaskResult { id: plan.tasks[0].id, outcome: Ok(TaskOutput::Listed(shards)) }];
        harness.report_worker();
        harness.tasks.clear();
        harness
    }

    /// Passes an input. Returns the reply, if there is one.
    fn step(&mut self, input: Input) -> Option<Reply> {
        let mut ready = Ready::default();
        self.cluster.step(self.now, input, &mut ready);
        for record in &ready.records {
            if let Record::Granted { splits, .. } = record {
                self.leases += splits.len() as u64;
            }
        }
        if !ready.manifests.is_empty() {
            self.step(Input::IndexSaved { job: self.job, result: Ok(()) });
        }
        ready.replies.pop().map(|(_, reply)| reply)
    }

    fn report_worker(&mut self) -> WorkerPlan {
        self.request += 1;
        let report = WorkerReport {
            worker: WorkerId(1),
            address: "http://worker".to_owned(),
            tls_name: None,
            pool: String::new(),
            machine: String::new(),
            nic_bytes_per_s: 0,
            cores: CORES,
            memory_bytes: 1 << 30,
            plan_revision: Revision::default(),
            computed: self.computed.clone(),
            memory_full: false,
            draining: false,
            tasks: self.tasks.clone(),
            task_progress: Vec::new(),
            elapsed_ns: 0,
            cpu: ProcessCpu::default(),
            stats: Vec::new(),
            caches: Vec::new(),
            memory: Vec::new(),
            stores: Vec::new(),
            graphs: None,
        };
        match self.step(Input::Worker { request: self.request, report }) {
            Some(Reply::Worker(plan)) => plan,
            other => panic!("a report without a known revision gets a plan: {other:?}"),
        }
    }

    fn report_consumer(&mut self, positions: Vec<(u32, StreamPosition)>) -> ConsumerPlan {
        self.request += 1;
        let report = ConsumerReport {
            job: self.job,
            consumer: 0,
            session: SessionId(1),
            plan_revision: Revision::default(),
            positions,
            open_splits: Vec::new(),
            wanted_splits: WANTS,
            unreachable: Vec::new(),
            batch_error: None,
            stats: ConsumerStats::default(),
            slots: Default::default(),
            history: Default::default(),
            known_growth: feedline_data::growth::KnownGrowth::default(),
        };
        match self.step(Input::Consumer { request: self.request, report }) {
            Some(Reply::Consumer(plan)) => plan,
            other => panic!("a report without a known revision gets a plan: {other:?}"),
        }
    }

    /// The worker computes all of its leases, and the consumer delivers the next split of a quarter of the streams.
    fn turn(&mut self, quarter: u32) {
        self.now += 1;
        let plan = self.report_worker();
        self.computed = plan.leases.iter().map(|lease| (lease.job, lease.split)).collect();
        let plan = self.report_consumer(Vec::new());
        let layout = plan.layout.expect("the job runs");
        let own = plan.streams.into_iter().filter(|(stream, _)| stream % 4 == quarter);
        let next = own.filter_map(|(stream, position)| {
            let (split, _) = layout.locate(stream, position)?;
            Some((stream, layout.position_in(split, layout.split_len(split))))
        });
        let positions = next.collect();
        self.report_consumer(positions);
        self.report_worker();
    }
}

fn pipeline() -> Pipeline {
    Pipeline::builder("bench").source(Source::text("data/*")).batch(64).build().expect("a valid pipeline")
}

fn manifest() -> Manifest {
    let mut schema = Schema::default();
    schema.set("text", ColumnType::Scalar(ScalarType::Int64));
    let block = Block { rows: ROWS, offset: 0, bytes: u64::from(ROWS) * 64, group: 0, row_bytes: Vec::new() };
    let object = ShardRef {
        url: "file:///d/0".to_owned(),
        size_bytes: 10,
        version: "1".to_owned(),
        ..ShardRef::default()
    };
    let index = ShardIndex {
        blocks: vec![block],
        schema: Some(schema),
        defects: Vec::new(),
        ..ShardIndex::default()
    };
    Manifest::build(vec![Shard::simulated(object, index)]).expect("one shard")
}

fn leases(criterion: &mut Criterion) {
    let mut harness = Harness::new();
    (0..40).for_each(|turn| harness.turn(turn % 4));
    let before = harness.leases;
    (0..40).for_each(|turn| harness.turn(turn % 4));
    let per_cycle = (harness.leases - before) / 10;
    assert!(per_cycle > 0, "each turn grants leases");
    let mut group = criterion.benchmark_group("short epochs");
    group.throughput(Throughput::Elements(per_cycle));
    group.bench_function("512 streams", |bencher| {
        bencher.iter(|| (0..4).for_each(|quarter| harness.turn(quarter)));
    });
    group.finish();
}

criterion_group!(benches, leases);
criterion_main!(benches);
