//! What workers and consumers count: cumulative since their start, so that a lost report loses nothing.

use feedline_data::ids::WorkerId;
use serde::{Deserialize, Serialize};

/// What one operator did for one job on one worker. The first is the source, the last is what gives rows to consumers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorSample {
    /// Name, unique in the pipeline.
    pub name: String,
    /// Rows taken.
    pub rows_in: u64,
    /// Rows given.
    pub rows_out: u64,
    /// Bytes taken.
    pub bytes_in: u64,
    /// Bytes given.
    pub bytes_out: u64,
    /// Thread CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Wall time inside executions in nanoseconds, summed over concurrent ones.
    pub busy_ns: u64,
    /// Wall time in nanoseconds that executions waited for their input.
    pub wait_input_ns: u64,
    /// Wall time in nanoseconds that executions waited to hand on their output.
    pub wait_output_ns: u64,
    /// Wall time in nanoseconds that executions waited without CPU for something outside: `wait`, a remote call. The
    /// source's requests are in [`StoreSample::wait_ns`] instead.
    pub latency_ns: u64,
    /// Bytes that wait before the operator now.
    pub queue_bytes: u64,
    /// Upper limit of concurrent executions on this worker, where the user wrote one.
    pub parallelism: Option<u32>,
    /// Whether it draws anew in each pass, so that its output must not be kept.
    pub is_random: bool,
    /// Whether it runs one execution at a time on a worker.
    pub is_sequential: bool,
}

/// What one worker read from the store for one job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreSample {
    /// Requests answered.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time of requests in nanoseconds, summed over concurrent ones; over the time elapsed it is the mean concurrency.
    pub wait_ns: u64,
    /// Requests that may be in flight at once.
    pub concurrency_limit: u32,
    /// Distinct shards read.
    pub distinct_shards: u64,
    /// Their size in bytes.
    pub distinct_shard_bytes: u64,
    /// Distinct rows read: those of the first pass.
    pub distinct_rows: u64,
    /// Shards of the dataset.
    pub total_shards: u64,
    /// Size of the dataset in bytes.
    pub total_bytes: u64,
    /// Rows of the dataset; 0 where they are not counted.
    pub total_rows: u64,
}

/// What one worker did for one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobWorkerSample {
    /// The worker.
    pub worker: WorkerId,
    /// Name of its kind of machine: workers of a type are equally fast.
    pub worker_type: String,
    /// CPU cores that it may use.
    pub cores: f64,
    /// Memory that it may use, in bytes.
    pub memory_bytes: u64,
    /// Disk that its caches may use, in bytes.
    pub disk_bytes: u64,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known.
    pub nic_bytes_per_s: f64,
    /// Time since the job began on this worker, in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time in nanoseconds of the process on the job's behalf: where it works on one job only, all of it.
    pub process_cpu_ns: u64,
    /// Memory that the job's rows hold now, in bytes.
    pub held_bytes: u64,
    /// Time in nanoseconds in which work was ready but the memory budget admitted none.
    pub memory_wait_ns: u64,
    /// Operators in order.
    pub operators: Vec<OperatorSample>,
    /// Reads.
    pub store: StoreSample,
}

/// What one consumer of a job took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobConsumerSample {
    /// Which consumer, from 0.
    pub consumer: u32,
    /// Batches taken.
    pub batches: u64,
    /// Rows taken.
    pub rows: u64,
    /// Bytes taken.
    pub bytes: u64,
    /// Bytes received from workers on other hosts.
    pub network_bytes: u64,
    /// Time in nanoseconds that it waited for a batch.
    pub stall_ns: u64,
    /// Time in nanoseconds between having a batch and asking for the next: its own work.
    pub step_ns: u64,
    /// Time since its first batch, in nanoseconds.
    pub elapsed_ns: u64,
}
