//! Tests of the state machine, input by input. The simulation in `coordinator/raft/tests/simulation.rs` tests long sequences of
//! inputs with faults.

mod changing;
mod committing;
mod empty;
mod ended;
mod first_record;
mod granting;
mod graphs;
mod growing;
mod joining;
mod limits;
mod losses;
mod opening;
mod placing;
mod preparing;
mod quotas;
mod ranks;
mod relaxed;
mod remixing;
mod restoring;
mod runs;
mod sampling;
mod scaling;
mod slots;
mod status;
mod step_positions;
mod timing;

use std::sync::Arc;

use feedline_data::ids::{SessionId, TaskId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::{Block, Defect, Manifest, Shard, ShardDigest, ShardIndex, ShardRef};
use feedline_data::messages::source_key;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobSpec, JobState, JobStatus, Lease, OperatorStats,
    ProcessCpu, Revision, ServiceError, ServiceErrorKind, StoreStats, TaskOutput, TaskResult, WorkerJobStats,
    WorkerPlan, WorkerReport,
};
use feedline_data::pipeline::{OnError, OrderMode, Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::records::Record;
use super::*;

/// A state machine with a clock, and all records that it has returned.
struct Bench {
    cluster: Cluster,
    now: Millis,
    records: Vec<Record>,
    manifests: Vec<IndexToSave>,
    /// The result of saving an index.
    saving: Result<(), String>,
    request: RequestId,
    answered: BTreeMap<RequestId, Reply>,
    /// Whether each step is compared with a full scan.
    has_full_checks: bool,
}

const INCARNATION: u64 = 9;

impl Bench {
    fn new() -> Self {
        Self {
            cluster: Cluster::new(ClusterSettings::default(), INCARNATION),
            now: 0,
            records: Vec::new(),
            manifests: Vec::new(),
            saving: Ok(()),
            request: 0,
            answered: BTreeMap::new(),
            has_full_checks: true,
        }
    }

    /// Passes an input with a new request. Returns the reply, if the step sent one.
    fn ask(&mut self, input: impl FnOnce(RequestId) -> Input) -> Option<Reply> {
        self.request += 1;
        let request = self.request;
        self.step(input(request));
        self.answered.get(&request).cloned()
    }

    fn step(&mut self, input: Input) {
        let mut ready = Ready::default();
        self.cluster.step(self.now, input, &mut ready);
        if self.has_full_checks {
            self.check_counts();
        }
        self.records.extend(ready.records);
        self.answered.extend(ready.replies);
        for index in ready.manifests {
            let job = index.job;
            self.manifests.push(index);
            self.step(Input::IndexSaved { job, result: self.saving.clone() });
        }
    }

    /// Compares the counters with a scan.
    fn check_counts(&mut self) {
        let cluster = &mut self.cluster;
        let (now, lease) = (cluster.now, cluster.settings.consumer_lease_ms);
        if let Some(silent_before) = now.checked_sub(lease + 1) {
            while cluster.consumer_reports.pop_due(silent_before).is_some() {}
        }
        let (mut consumers, mut running) = (0, RunningJobs::default());
        for job in cluster.jobs.values().filter(|job| !job.is_ended()) {
            consumers += job.consumers.values().filter(|consumer| !consumer.is_silent(now, lease)).count();
            running.update(&job.spec.tenant, false, job.running_layout().is_some());
        }
        assert_eq!((cluster.consumer_reports.len(), &cluster.running_jobs), (consumers, &running));
        self.check_full_scan();
    }

    /// A scan of all streams and leases after a step decides nothing more: the step has examined everything that was due.
    fn check_full_scan(&mut self) {
        let cluster = &mut self.cluster;
        let running: Vec<JobId> =
            cluster.jobs.values().filter(|job| job.running_layout().is_some()).map(|job| job.id).collect();
        for id in running {
            let Some(job) = cluster.jobs.get_mut(&id) else { continue };
            job.touched_streams.all = true;
            cluster.jobs_to_schedule.insert(id);
        }
        let mut ready = Ready::default();
        cluster.schedule(&mut ready);
        assert_eq!(ready.records, [], "a full scan");
        cluster.jobs.take_visited();
        cluster.workers.take_visited();
    }

    fn pass(&mut self, ms: Millis) {
        self.now += ms;
        self.step(Input::Tick);
    }

    fn open(&mut self, spec: &JobSpec) -> Result<JobId, ServiceError> {
        self.open_with(spec, None)
    }

    fn open_with(&mut self, spec: &JobSpec, saved: Option<Arc<Manifest>>) -> Result<JobId, ServiceError> {
        let (spec, saved_index) = (Box::new(spec.clone()), saved.into());
        match self.ask(|request| Input::OpenJob { request, spec, saved_index }) {
            Some(Reply::Opened(job)) => Ok(job),
            Some(Reply::Rejected(refusal)) => Err(refusal),
            other => panic!("not an answer to an opening: {other:?}"),
        }
    }

    /// Passes a report. Returns the plan, if the step sent one.
    fn worker(&mut self, report: WorkerReport) -> Option<WorkerPlan> {
        match self.ask(|request| Input::Worker { request, report }) {
            Some(Reply::Worker(plan)) => Some(plan),
            None => None,
            other => panic!("not an answer to a worker: {other:?}"),
        }
    }

    fn consumer(&mut self, report: ConsumerReport) -> Option<ConsumerPlan> {
        match self.ask(|request| Input::Consumer { request, report }) {
            Some(Reply::Consumer(plan)) => Some(plan),
            None => None,
            other => panic!("not an answer to a consumer: {other:?}"),
        }
    }

    fn status(&mut self, job: JobId) -> JobStatus {
        match self.ask(|request| Input::JobStatus { request, job: Some(job) }) {
            Some(Reply::Status(mut jobs)) => jobs.remove(0),
            other => panic!("not a status: {other:?}"),
        }
    }

    /// A running job. Worker 1 has prepared its dataset and holds its first leases.
    fn running(spec: &JobSpec, rows: u32) -> (Self, JobId) {
        Self::running_on(spec, manifest(&[rows]))
    }

    /// A running job on a dataset. Worker 1 has prepared the dataset and holds its first leases.
    fn running_on(spec: &JobSpec, manifest: Manifest) -> (Self, JobId) {
        let mut bench = Self::new();
        let job = bench.open_with(spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
        let plan = bench.worker(report(1)).expect("the listing task");
        bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &manifest)], ..report(1) });
        assert_eq!(bench.status(job).state, JobState::Running);
        (bench, job)
    }

    fn granted(&self, worker: u64) -> Vec<SplitRef> {
        let of = |record: &Record| match record {
            Record::Granted { worker: of, splits, .. } if of.0 == worker => splits.clone(),
            _ => Vec::new(),
        };
        self.records.iter().flat_map(of).collect()
    }

    /// The splits that a worker holds.
    fn held(&self, worker: u64) -> Vec<SplitRef> {
        self.cluster.workers[&WorkerId(worker)].leases().map(|(_, split)| split).collect()
    }

    /// The records from an index on, as JSON lines.
    fn text_since(&self, start: usize) -> String {
        let line = |record: &Record| serde_json::to_string(record).expect("plain data") + "\n";
        self.records[start..].iter().map(line).collect()
    }
}

fn spec(batch: u32, consumers: u32) -> JobSpec {
    let pipeline =
        Pipeline::builder("p").source(Source::text("data/*")).batch(batch).build().expect("a valid pipeline");
    JobSpec {
        tenant: String::new(),
        name: "run".to_owned(),
        pipeline,
        epochs: 1,
        virtual_consumers: consumers,
        consumers,
        start: None,
        audit: false,
        reindex: false,
        accept_reuploaded: false,
        accept_changed_pipeline: false,
        index_only: false,
        weight: 1.0,
        elastic: false,
    }
}

fn relaxed(batch: u32, consumers: u32) -> JobSpec {
    let mut spec = spec(batch, consumers);
    spec.pipeline.order = OrderMode::Relaxed;
    spec
}

/// A dataset with one shard for each number of rows.
fn manifest(rows: &[u32]) -> Manifest {
    let mut schema = Schema::default();
    schema.set("text", ColumnType::Scalar(ScalarType::Int64));
    let shard = |(index, &rows): (usize, &u32)| {
        Shard::simulated(
            ShardRef {
                url: format!("file:///d/{index}"),
                size_bytes: 10,
                version: "1".to_owned(),
                ..ShardRef::default()
            },
            ShardIndex {
                blocks: vec![Block { rows, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }],
                schema: Some(schema.clone()),
                defects: Vec::new(),
                ..ShardIndex::default()
            },
        )
    };
    Manifest::build(rows.iter().enumerate().map(shard).collect()).expect("shards of one schema")
}

fn report(worker: u64) -> WorkerReport {
    WorkerReport {
        worker: WorkerId(worker),
        address: format!("w{worker}"),
        tls_name: None,
        pool: String::new(),
        cores: 1,
        memory_bytes: 1,
        machine: String::new(),
        nic_bytes_per_s: 0,
        plan_revision: Revision::default(),
        computed: Vec::new(),
        memory_full: false,
        draining: false,
        tasks: Vec::new(),
        task_progress: Vec::new(),
        elapsed_ns: 0,
        cpu: ProcessCpu::default(),
        stats: Vec::new(),
        caches: Vec::new(),
        memory: Vec::new(),
        stores: Vec::new(),
        graphs: None,
    }
}

/// The counters of a worker that has computed nothing of a job.
fn stats_of(job: JobId, peak_rss_bytes: u64) -> WorkerJobStats {
    WorkerJobStats {
        job,
        operators: Vec::new(),
        store: StoreStats::default(),
        memory_wait_ns: 0,
        peak_rss_bytes,
        elapsed_ns: 0,
        cpu: ProcessCpu::default(),
        encodings: Vec::new(),
        graph: None,
    }
}

fn consumer_report(job: JobId, consumer: u32) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer,
        session: SessionId(1),
        plan_revision: Revision::default(),
        positions: Vec::new(),
        open_splits: Vec::new(),
        wanted_splits: 2,
        unreachable: Vec::new(),
        batch_error: None,
        stats: ConsumerStats::default(),
        slots: Default::default(),
        history: Default::default(),
        known_growth: feedline_data::growth::KnownGrowth::default(),
    }
}

fn listed(id: TaskId, manifest: &Manifest) -> TaskResult {
    let shards = manifest.shards.iter().map(|shard| shard.object.clone()).collect();
    TaskResult { id, outcome: Ok(TaskOutput::Listed(shards)) }
}

fn split(stream: u32, ordinal: u64) -> SplitRef {
    SplitRef { epoch: 0, ordinal, stream }
}
