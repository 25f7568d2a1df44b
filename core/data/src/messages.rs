//! Messages between coordinator, workers and consumers. The crate `proto` defines their wire format.

mod allocations;
mod errors;
mod graph_stats;
mod graphs;
mod growths;
mod mixes;
mod positions;
pub mod samples;
mod slots;
mod stats;
mod stores;
mod tasks;
mod worker_address;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::allocations::{
    CacheDecision, JobAllocation, MIN_CORES, PlanAllocations, TierCapacity, WorkerAllocations,
};
pub use self::errors::{ServiceError, ServiceErrorKind};
pub use self::graph_stats::GraphStats;
pub use self::graphs::{
    GraphJobLoad, GraphLoadState, GraphReport, HeldGraph, MAX_GRAPH_JOBS, MAX_HELD_GRAPHS, PartitionedJob,
};
pub use self::growths::JobSegments;
pub use self::mixes::JobMixChanges;
pub use self::positions::{GroupPositions, HistoryReport};
pub use self::slots::{SlotGrant, SlotPosition, SlotReport};
pub use self::stats::{
    ConsumerStats, EncodingStats, OperatorStats, ProcessCpu, StoreStats, WorkerJobStats, saturating_sum,
};
pub use self::stores::{StoreJobReport, StoreReport, StoreShare, store_key};
pub use self::tasks::{Task, TaskOutput, TaskProgress, TaskResult};
pub use self::worker_address::WorkerAddress;

use crate::checkpoint::{Position, StepId};
use crate::committed_offsets::PartitionOffset;
use crate::growth::{GrowthUpdate, KnownGrowth};
use crate::ids::{JobId, SessionId, WorkerId};
use crate::layout::{DeliveredPrefix, Layout, SplitRef, StreamPosition};
use crate::manifest::DatasetSummary;
use crate::memory::MemoryUsage;
use crate::pipeline::{Pipeline, Source};
use crate::tenants::TenantReads;

/// Maximum number of splits per stream in a consumer's plan; in relaxed mode, maximum number of splits in the whole plan. A
/// batch spans at most this number of splits.
pub const MAX_WANTED_SPLITS: u32 = 16_384;

/// Number of lost workers after which a split or an indexing task is not computed again.
pub const MAX_LOST_WORKERS: u32 = 3;

/// The definition of a job: the inputs that determine its rows, and the consumers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The tenant of the job; empty without tenants. Two tenants may use the same job name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The name of the run. Consumers of a tenant that open the same name with the same spec share the job.
    pub name: String,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The number of epochs, at least 1.
    pub epochs: u32,
    /// The number of streams in deterministic mode; at least `consumers`.
    pub virtual_consumers: u32,
    /// The number of physical consumers, which are numbered from 0.
    pub consumers: u32,
    /// The start position; `None` starts at the first row.
    pub start: Option<Position>,
    /// Whether batches contain the ids of their rows.
    pub audit: bool,
    /// Whether to rebuild the index even if a saved index exists.
    pub reindex: bool,
    /// Whether a job with a start position accepts shards that were written again if indexing reads only parts of them, and
    /// these parts are unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_reuploaded: bool,
    /// Whether a job with a start position continues with another pipeline than the position was saved with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_changed_pipeline: bool,
    /// Whether the job completes after indexing the dataset.
    pub index_only: bool,
    /// The job's weight, above 0. When workers are scarce, jobs receive resources in proportion to their weights.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Whether the number of consumers may change. The virtual consumers are then slots that the current ranks share, and
    /// `consumers` is the initial number of ranks. Deterministic mode only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
}

fn default_weight() -> f64 {
    1.0
}

impl JobSpec {
    /// Creates a job with one epoch and one consumer. The job has the name of its pipeline.
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
            accept_reuploaded: false,
            accept_changed_pipeline: false,
            index_only: false,
            weight: default_weight(),
            elastic: false,
        }
    }
}

/// The version of a plan for a worker or consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Revision {
    /// Identifies the run of the coordinator's state machine. Every restart and every new leader starts a new incarnation.
    pub incarnation: u64,
    /// The number of changes to the plan in this incarnation.
    pub number: u64,
}

/// A report of a worker's complete state. Reports are idempotent.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerReport {
    /// The worker.
    pub worker: WorkerId,
    /// The URL at which consumers fetch, such as `http://10.0.0.7:7071`.
    pub address: String,
    /// The name that consumers expect in the worker's certificate; `None` means the host of the address.
    pub tls_name: Option<String>,
    /// The pool of the worker, whose size a scaler sets; empty without a pool.
    pub pool: String,
    /// The CPU model. The planner assumes that workers with the same model have the same speed.
    pub machine: String,
    /// The network bandwidth in bytes per second in each direction; 0 if unknown.
    pub nic_bytes_per_s: u64,
    /// The number of CPU cores that the worker may use.
    pub cores: u32,
    /// The memory budget in bytes.
    pub memory_bytes: u64,
    /// The revision of the worker's current plan.
    pub plan_revision: Revision,
    /// The leased splits that are fully computed and wait for consumers.
    pub computed: Vec<(JobId, SplitRef)>,
    /// Whether too little of the memory budget is free to start another split.
    pub memory_full: bool,
    /// Whether the worker is draining before it leaves the cluster. A draining worker receives no new leases.
    pub draining: bool,
    /// The results of finished tasks. The worker repeats a result until its plan no longer contains the task.
    pub tasks: Vec<TaskResult>,
    /// How far each running indexing task is.
    pub task_progress: Vec<TaskProgress>,
    /// Nanoseconds from the worker's start to the measurement of `stats` and `cpu`.
    pub elapsed_ns: u64,
    /// The CPU time of the process.
    pub cpu: ProcessCpu,
    /// Statistics of each job since the worker's start.
    pub stats: Vec<WorkerJobStats>,
    /// The cache tiers of the worker.
    pub caches: Vec<TierCapacity>,
    /// The bytes of the worker's memory budget that each account uses.
    pub memory: Vec<MemoryUsage>,
    /// The requests to each object store.
    pub stores: Vec<StoreReport>,
    /// The graphs of the worker; `None` if the worker loads graphs only after it has received leases.
    pub graphs: Option<GraphReport>,
}

/// The complete desired state of a worker. Plans are idempotent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerPlan {
    /// The revision of this plan.
    pub revision: Revision,
    /// The splits to compute and serve, most urgent first.
    pub leases: Vec<Lease>,
    /// The listing and indexing tasks.
    pub tasks: Vec<Task>,
    /// Milliseconds without contact after which the leases expire.
    pub lease_ms: u64,
    /// The number of CPU pool threads to use; 0 uses all.
    pub cores: u32,
    /// The allocation of each job on the worker. A job without an allocation has no limits.
    pub allocations: Vec<JobAllocation>,
    /// The tenants of the worker's jobs. Jobs without an entry share one tenant without a cache quota.
    pub tenants: Vec<TenantCacheQuota>,
    /// The key that validates the tickets of consumers; empty without tickets. The coordinator's service sets the key, not
    /// the state machine.
    pub ticket_key: Vec<u8>,
    /// All mix weight changes of each leased job. A plan never contains a lease without the changes that affect its rows.
    pub mixes: Vec<JobMixChanges>,
    /// The segments of each leased unbounded job. A plan never contains a lease without the segment of its rows.
    pub segments: Vec<JobSegments>,
    /// The worker's part of the budget of each throttled store. A store without an entry keeps its last part.
    pub stores: Vec<StoreShare>,
    /// Jobs whose delivered offsets the worker commits to consumer groups.
    pub group_commits: Vec<GroupCommit>,
    /// Jobs that sample a graph. The worker loads them, and receives leases of a job after it has reported that it is loaded. It
    /// keeps the graphs of these jobs.
    pub graph_jobs: Vec<JobId>,
    /// The jobs among `graph_jobs` that partition the features of their graph, with their workers.
    pub partitioned_jobs: Vec<PartitionedJob>,
}

/// A commit of the offsets that a job has delivered to its consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupCommit {
    /// The job.
    pub job: JobId,
    /// The rows that are delivered.
    pub delivered: DeliveredPrefix,
    /// The offsets of an unbounded job. Those of other jobs follow from their manifest, and are not part of the message.
    pub offsets: Vec<PartitionOffset>,
}

/// The cache quota of a tenant's jobs on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantCacheQuota {
    /// The name of the tenant.
    pub tenant: String,
    /// Maximum size in bytes of the tenant's cached rows in memory and on disk; `None` means no limit.
    pub cache_bytes: Option<u64>,
    /// The tenant's jobs that have leases on the worker.
    pub jobs: Vec<JobId>,
}

/// A split that a worker holds until it is computed or the lease expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// The split.
    pub split: SplitRef,
    /// The offset of the first undelivered row in the split.
    pub start_offset: u32,
    /// The number of workers that were lost before they had computed the split. With [`MAX_LOST_WORKERS`], the worker
    /// reports the first group as failed, without computing it.
    pub lost_workers: u32,
}

/// A report of a consumer's complete state. Reports are idempotent.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerReport {
    /// The job.
    pub job: JobId,
    /// The index of the consumer, from 0.
    pub consumer: u32,
    /// The consumer's session. A newer session supersedes this one.
    pub session: SessionId,
    /// The revision of the consumer's current plan.
    pub plan_revision: Revision,
    /// Deterministic mode: the next undelivered row of each owned stream.
    pub positions: Vec<(u32, StreamPosition)>,
    /// Relaxed mode: the offset of the next undelivered row of each assigned split; the split's length if it is done.
    pub open_splits: Vec<(SplitRef, u32)>,
    /// The number of splits per stream that the plan should contain; in relaxed mode, the number of assigned splits.
    pub wanted_splits: u32,
    /// Splits that the consumer could not fetch, each with the unreachable worker that holds the split.
    pub unreachable: Vec<(SplitRef, WorkerId)>,
    /// The one-sentence error message for a failed batch under `on_error: fail`.
    pub batch_error: Option<String>,
    /// Statistics of the consumer.
    pub stats: ConsumerStats,
    /// Elastic jobs: the consumer's slots, instead of `positions`.
    pub slots: SlotReport,
    /// The positions after the most recent batches. Set if a plan queries a step or the consumer stops.
    pub history: HistoryReport,
    /// Unbounded jobs: how much of the growth the consumer knows.
    pub known_growth: KnownGrowth,
}

/// The complete desired state of a consumer. Plans are idempotent.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerPlan {
    /// The revision of this plan.
    pub revision: Revision,
    /// The state of the job.
    pub state: JobState,
    /// The layout of the job; `None` until the dataset is indexed.
    pub layout: Option<Layout>,
    /// Deterministic mode: the consumer's streams with their recorded positions.
    pub streams: Vec<(u32, StreamPosition)>,
    /// The splits to fetch: in deterministic mode the next splits of each stream, in relaxed mode the assigned splits.
    pub splits: Vec<PlannedSplit>,
    /// Relaxed mode: whether all splits are assigned. If so, `splits` contains the last splits of the job.
    pub exhausted: bool,
    /// Maximum number of splits in a plan: per stream in deterministic mode, in total in relaxed mode.
    pub max_splits: u32,
    /// The number of consumers of the job; 0 if unknown.
    pub consumers: u32,
    /// The ticket that the consumer presents to workers; empty without tickets. The coordinator's service sets the ticket,
    /// not the state machine.
    pub ticket: String,
    /// Elastic jobs: the granted slots, instead of `streams`; `None` in other jobs.
    pub slots: Option<Vec<SlotGrant>>,
    /// Whether a consumer of the job has delivered rows, or the job need not deliver any. Otherwise a consumer without rows
    /// waits at its end, because the job may fail.
    pub has_rows: bool,
    /// The queried steps. The consumer reports its positions at each step when it reaches the step.
    pub step_queries: Vec<StepId>,
    /// Unbounded jobs: the growth that the consumer does not know.
    pub growth: Option<Box<GrowthUpdate>>,
}

/// A split with the workers that serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSplit {
    /// The split.
    pub split: SplitRef,
    /// The offset of the first undelivered row in the split.
    pub start_offset: u32,
    /// The workers that hold the split, with their addresses. All of them serve identical rows.
    pub workers: Vec<(WorkerId, WorkerAddress)>,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The dataset is being listed or indexed.
    Preparing {
        /// The number of indexed shards.
        indexed: u64,
        /// The number of listed shards; 0 while listing.
        shards: u64,
        /// The size of the indexed shards and of the parts of others that were read, in bytes.
        #[serde(default)]
        read_bytes: u64,
        /// The size of the listed shards in bytes.
        #[serde(default)]
        total_bytes: u64,
        /// The number of live workers.
        workers: u32,
    },
    /// Workers compute rows, and consumers may fetch them.
    Running,
    /// All rows were delivered.
    Completed,
    /// The job failed with this one-sentence error message.
    Failed(String),
    /// A user cancelled the job.
    Cancelled,
}

impl JobState {
    /// Whether the state is final.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_) | Self::Cancelled)
    }
}

/// The definition of a job for a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetails {
    /// The job.
    pub job: JobId,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The layout.
    pub layout: Layout,
    /// The key of the manifest: see [`source_key`].
    pub source_key: String,
    /// The dataset.
    pub dataset: DatasetSummary,
    /// Whether pieces contain row ids.
    pub audit: bool,
    /// The initial cache decision. An allocation can replace the decision.
    pub cache: Option<CacheDecision>,
    /// The read permissions of the job's tenant.
    pub reads: TenantReads,
}

/// The status of a job, for users and reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub job: JobId,
    /// The tenant of the job.
    #[serde(default)]
    pub tenant: String,
    /// The name of the job.
    pub name: String,
    /// The state of the job.
    pub state: JobState,
    /// The number of epochs.
    pub epochs: u32,
    /// The number of physical consumers.
    pub consumers: u32,
    /// The dataset; `None` until it is indexed.
    pub dataset: Option<DatasetSummary>,
    /// The layout; `None` until the dataset is indexed.
    pub layout: Option<Layout>,
    /// The position of the consumers; `None` until the dataset is indexed.
    pub position: Option<Position>,
    /// Statistics of the operators, summed over workers.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store, summed over workers.
    pub store: StoreStats,
    /// The total CPU time of each worker process that has worked on the job.
    pub worker_cpu: Vec<(WorkerId, ProcessCpu)>,
    /// Statistics summed over all consumers.
    pub delivered: ConsumerStats,
    /// The peak resident set size of each worker process that has worked on the job.
    pub worker_peak_rss_bytes: Vec<(WorkerId, u64)>,
    /// The peak resident set size of the coordinator process. The state machine sets 0, and the process fills in the value.
    pub coordinator_peak_rss_bytes: u64,
    /// The number of live workers in the cluster.
    pub workers: u32,
    /// Whether every live worker has reported since the job ended.
    pub settled: bool,
    /// Elastic jobs: the number of slots of each rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slot_owners: Vec<(u32, u32)>,
    /// Why the job has no rows to compute. Unbounded jobs: the topics cannot be listed, or contain no record when the job opens, or the
    /// job waits for its consumers because too many recorded blocks are not delivered. Jobs that sample a graph: all workers are still
    /// loading the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_error: Option<String>,
}

/// Returns the key of a dataset's saved index: a SHA-256 hash of the tenant and the source as the user wrote it. The hash is
/// collision-resistant, so a user cannot replace the index of another source. The tenant is part of the hash, so tenants
/// cannot observe which sources other tenants have indexed.
pub fn source_key(tenant: &str, source: &Source) -> String {
    let text = serde_json::to_string(&(tenant, source)).expect("a source is plain data");
    hex_digest(&text)
}

/// Number of digits of [`recorded_prefix`].
const RECORDED_PREFIX_DIGITS: usize = 16;
/// Number of digits of the key of a growing source. Other keys have 64 digits.
const RECORDED_KEY_DIGITS: usize = RECORDED_PREFIX_DIGITS + 64;

/// Returns the key of the saved index of a job with this fingerprint of its dataset. Jobs that read a growing source have indexes
/// of their own. The keys of these indexes begin with digits that depend only on the tenant.
pub fn index_key(tenant: &str, source: &Source, fingerprint: &str) -> String {
    let key = source_key(tenant, source);
    if !source.is_growing() {
        return key;
    }
    let mut owner = hex_digest(tenant);
    owner.truncate(RECORDED_PREFIX_DIGITS);
    owner + &hex_digest(&format!("{key} {fingerprint}"))
}

/// Returns the digits that the keys of all growing sources of a tenant have in common; `None` for the key of another source.
pub fn recorded_prefix(key: &str) -> Option<&str> {
    if key.len() == RECORDED_KEY_DIGITS { key.get(..RECORDED_PREFIX_DIGITS) } else { None }
}

fn hex_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the key of the saved index with which a job opens; `None` if the job needs a new index.
pub fn saved_index_key(spec: &JobSpec) -> Option<String> {
    let source = &spec.pipeline.listed_source();
    if spec.reindex {
        return None;
    }
    match &spec.start {
        // The position contains everything.
        Some(start) if start.growth.is_some() => None,
        Some(start) => Some(index_key(&spec.tenant, source, &start.dataset)),
        None => (!source.is_growing()).then(|| source_key(&spec.tenant, source)),
    }
}

#[cfg(test)]
mod tests;
