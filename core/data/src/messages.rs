//! Messages between coordinator, workers and consumers. `proto` carries the same over the wire.

mod allocations;
mod errors;
mod mixes;
mod positions;
pub mod samples;
mod slots;
mod stats;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::allocations::{
    CACHE_MEMORY_SHARE, CacheDecision, JobAllocation, LEAST_CORES, TierCapacity, WorkerAllocations,
};
pub use self::errors::{ServiceError, ServiceErrorKind};
pub use self::mixes::JobMixChanges;
pub use self::positions::{GroupPositions, HistoryReport};
pub use self::slots::{SlotGrant, SlotPosition, SlotReport};
pub use self::stats::{
    ConsumerStats, FormStats, OperatorStats, ProcessCpu, StoreStats, WorkerJobStats, saturating_sum,
};

use crate::checkpoint::Position;
use crate::checkpoint::StepId;
use crate::ids::{JobId, SessionId, TaskId, WorkerId};
use crate::layout::{Layout, SplitRef, StreamPosition};
use crate::manifest::{DatasetSummary, ShardIndex, ShardRef};
use crate::pipeline::{Pipeline, Source};
use crate::tenants::TenantReads;

/// Splits ahead of each stream that a consumer is told of, or holds in relaxed mode, however many it asks for: a batch can
/// be put together from as many.
pub const MOST_WANTED: u32 = 16_384;

/// What a job is: everything that its rows depend on, and who takes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Whose job it is; empty where tenants are not told apart. Names are those of a tenant: two may use the same one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Name of the run; consumers of a tenant that open the same name with the same spec share the job.
    pub name: String,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Epochs, at least 1.
    pub epochs: u32,
    /// Fixed slots that the rows are dealt to in deterministic mode; at least `consumers`.
    pub virtual_consumers: u32,
    /// Physical consumers that will join, numbered from 0.
    pub consumers: u32,
    /// Where to start; the beginning by default.
    pub start: Option<Position>,
    /// Whether batches carry the ids of their rows.
    pub audit: bool,
    /// Whether a saved index is ignored and built anew.
    pub reindex: bool,
    /// Whether the job ends once the dataset is indexed.
    pub index_only: bool,
    /// Its claim where there are too few workers: jobs are fed in proportion to their weights. Above 0.
    #[serde(default = "usual_weight")]
    pub weight: f64,
    /// Whether consumers come and go: its virtual consumers are slots that the ranks that are there share, and `consumers` is
    /// how many are expected at first. Deterministic mode only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
}

/// What a job weighs where nobody says.
fn usual_weight() -> f64 {
    1.0
}

impl JobSpec {
    /// One epoch for one consumer from the beginning, under the pipeline's name.
    pub fn new(pipeline: Pipeline) -> Self {
        Self {
            tenant: String::new(),
            name: pipeline.name.clone(),
            pipeline,
            epochs: 1,
            virtual_consumers: 1,
            consumers: 1,
            start: None,
            audit: false,
            reindex: false,
            index_only: false,
            weight: usual_weight(),
            elastic: false,
        }
    }
}

/// A version of the desired state sent to a worker or consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// One life of the coordinator's state machine.
    pub life: u64,
    /// Counts changes within it.
    pub number: u64,
}

/// What a worker says of itself: complete and repeatable.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerReport {
    /// The worker.
    pub worker: WorkerId,
    /// Address at which consumers fetch, such as `http://10.0.0.7:7071`.
    pub address: String,
    /// What its cores are, such as the model of the CPU: workers with the same are taken to be of one speed.
    pub machine: String,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known.
    pub nic_bytes_per_s: u64,
    /// CPU cores it may use.
    pub cores: u32,
    /// Its memory budget in bytes.
    pub memory_bytes: u64,
    /// Revision of the plan that it holds.
    pub seen: Revision,
    /// Leases whose rows are all computed and wait for consumers.
    pub computed: Vec<(JobId, SplitRef)>,
    /// Whether its memory budget leaves no room for further splits.
    pub memory_full: bool,
    /// Whether it wants to leave: it gets no new leases.
    pub draining: bool,
    /// Finished tasks. Repeated until the plan no longer lists them.
    pub tasks: Vec<TaskResult>,
    /// Nanoseconds since the worker started: when `stats` and `cpu` were taken.
    pub elapsed_ns: u64,
    /// CPU time of its process so far.
    pub cpu: ProcessCpu,
    /// Work done so far for each job, counted since the worker started.
    pub stats: Vec<WorkerJobStats>,
    /// The tiers of its caches.
    pub caches: Vec<TierCapacity>,
}

/// What a worker shall do: complete and repeatable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerPlan {
    /// Version of this plan.
    pub revision: Revision,
    /// Splits to compute and serve, most urgent first.
    pub leases: Vec<Lease>,
    /// Listing and indexing tasks.
    pub tasks: Vec<Task>,
    /// Milliseconds without contact after which the leases are given to others.
    pub lease_ms: u64,
    /// Threads of its CPU pool to use; 0: as many as it has.
    pub cores: u32,
    /// What each job may use of the worker. A job that is not listed has no limits.
    pub allotments: Vec<JobAllocation>,
    /// Whose the jobs are that it has leases of. Jobs that nobody names are of one tenant without a limit.
    pub tenants: Vec<TenantPart>,
    /// What the worker checks consumers' tickets with; empty where they need none. The state machine knows none.
    pub ticket_key: Vec<u8>,
    /// How the mixes of jobs that it has leases of have changed, where they have: complete for each, and no lease beyond a change comes
    /// without it.
    pub mixes: Vec<JobMixChanges>,
}

/// What a tenant's jobs may keep on one worker, whether plans or their pipelines say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPart {
    /// Its name.
    pub tenant: String,
    /// Bytes of rows that the worker may hold for its jobs in memory and on disk together; `None` is no limit.
    pub cache_bytes: Option<u64>,
    /// Those of its jobs that the worker has leases of.
    pub jobs: Vec<JobId>,
}

/// A split handed to a worker until it is done or the worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// The split.
    pub split: SplitRef,
    /// Offset of the first row still wanted.
    pub from: u32,
}

/// Listing a source, or indexing some of its shards.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Identifies the task within one life of the coordinator.
    pub id: TaskId,
    /// The dataset.
    pub source: Source,
    /// The shards to index; `None` asks for the list of shards.
    pub shards: Option<Vec<ShardRef>>,
    /// What the job's tenant may read.
    pub reads: TenantReads,
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskResult {
    /// The task.
    pub id: TaskId,
    /// What it found, or one sentence.
    pub outcome: Result<TaskOutput, String>,
}

/// What a task found.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskOutput {
    /// The shards of a source.
    Listed(Vec<ShardRef>),
    /// The index of each shard of the task, in order.
    Indexed(Vec<ShardIndex>),
}

/// What a consumer says: complete and repeatable.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerReport {
    /// The job.
    pub job: JobId,
    /// Which consumer, from 0.
    pub consumer: u32,
    /// The consumer's present connection: a newer one takes over.
    pub session: SessionId,
    /// Revision of the plan that it holds.
    pub seen: Revision,
    /// Deterministic mode: next undelivered row of each owned stream.
    pub positions: Vec<(u32, StreamPosition)>,
    /// Relaxed mode: offset of the next undelivered row of each split it took; the split's length when done.
    pub open: Vec<(SplitRef, u32)>,
    /// Splits that it wants to know the workers of ahead, for each stream; in relaxed mode, splits it wants to hold.
    pub wants: u32,
    /// Splits that a worker which holds them could not be asked for.
    pub unreachable: Vec<(SplitRef, WorkerId)>,
    /// Set when a batch failed under `on_error: fail`: one sentence.
    pub failed: Option<String>,
    /// What it has received.
    pub stats: ConsumerStats,
    /// Elastic jobs: its slots, in place of `positions`.
    pub slots: SlotReport,
    /// Its position history, when a plan queries a step or the consumer closes.
    pub history: HistoryReport,
}

/// What a consumer shall do: complete and repeatable.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerPlan {
    /// Version of this plan.
    pub revision: Revision,
    /// How the job stands.
    pub state: JobState,
    /// The job's cuts, once the dataset is known.
    pub layout: Option<Layout>,
    /// Deterministic mode: the consumer's streams and where the coordinator has them.
    pub streams: Vec<(u32, StreamPosition)>,
    /// Splits to fetch: in deterministic mode the next ones of each stream, in relaxed mode those it holds.
    pub splits: Vec<PlannedSplit>,
    /// Relaxed mode: whether every split has been handed out, so that nothing follows those in `splits`.
    pub exhausted: bool,
    /// Most splits of each stream that are ever in `splits`, in relaxed mode in all, however many the consumer asks for.
    pub most_splits: u32,
    /// Consumers that the job was opened for; 0 where it is not said.
    pub consumers: u32,
    /// What the consumer shows to workers; empty where they do not ask. The state machine knows none.
    pub ticket: String,
    /// Elastic jobs: the slots that it has, in place of `streams`; `None` in others.
    pub slots: Option<Vec<SlotGrant>>,
    /// Steps at which somebody asks where it stands: its next reports say so as soon as they can.
    pub step_queries: Vec<StepId>,
}

/// A split and who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSplit {
    /// The split.
    pub split: SplitRef,
    /// Offset of the first row still wanted.
    pub from: u32,
    /// Workers that hold it and their addresses; any of them gives the same rows.
    pub workers: Vec<(WorkerId, String)>,
}

/// How a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The dataset is being listed or indexed.
    Preparing {
        /// Shards indexed so far.
        indexed: u64,
        /// Shards known so far; 0 while listing.
        shards: u64,
        /// Workers at hand.
        workers: u32,
    },
    /// Rows flow.
    Running,
    /// Every row was delivered.
    Completed,
    /// The job failed: one sentence.
    Failed(String),
    /// The user ended it.
    Cancelled,
}

impl JobState {
    /// Whether nothing more will come.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_) | Self::Cancelled)
    }
}

/// What a worker needs to work on a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetails {
    /// The job.
    pub job: JobId,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The job's cuts.
    pub layout: Layout,
    /// Names the manifest: see [`source_key`].
    pub source_key: String,
    /// The dataset.
    pub dataset: DatasetSummary,
    /// Whether pieces carry row ids.
    pub audit: bool,
    /// What workers keep of its rows as long as no allotment says otherwise.
    pub keep: Option<CacheDecision>,
    /// What its tenant may read.
    pub reads: TenantReads,
}

/// How a job stands, for people and reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    #[serde(default)]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: JobState,
    /// Epochs.
    pub epochs: u32,
    /// Physical consumers it was opened for.
    pub consumers: u32,
    /// The dataset, once known.
    pub dataset: Option<DatasetSummary>,
    /// The cuts, once known.
    pub layout: Option<Layout>,
    /// Where the consumers stand, once the dataset is known.
    pub position: Option<Position>,
    /// Sum over workers.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store, summed over workers.
    pub store: StoreStats,
    /// CPU time so far of each worker's process that has worked on it, whatever it was spent on.
    pub worker_cpu: Vec<(WorkerId, ProcessCpu)>,
    /// Sum over consumers.
    pub delivered: ConsumerStats,
    /// Peak resident set of each worker that has worked on it.
    pub worker_peak_rss_bytes: Vec<(WorkerId, u64)>,
    /// Peak resident set of the coordinator's process, which fills it in; 0 in the state machine's answer.
    pub coordinator_peak_rss_bytes: u64,
    /// Workers of the cluster that report.
    pub workers: u32,
    /// Whether every live worker has reported since the job ended.
    pub settled: bool,
    /// Elastic jobs: ranks and how many slots each has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slot_owners: Vec<(u32, u32)>,
}

/// Names a dataset's saved index: a hash of the tenant and of the source as the user wrote it. Nobody can find a source with the
/// name of another, and no tenant sees by an index that another has indexed the same.
pub fn source_key(tenant: &str, source: &Source) -> String {
    let text = serde_json::to_string(&(tenant, source)).expect("a source is plain data");
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
