//! What workers and consumers have done, as they report it. Everything is counted since the reporter started and only
//! grows, but for what says that it is of the moment: the difference of two reports is a window.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::pipeline::CacheEncoding;

/// What one operator has done.
///
/// An execution is one call on a chunk of rows. `busy_ns / elapsed_ns` is the mean number of executions at a time, and
/// `cpu_ns / busy_ns` the part of it that was computing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorStats {
    /// Name, unique in the pipeline; `source` and `batch` are the ends.
    pub name: String,
    /// Rows taken.
    pub rows_in: u64,
    /// Rows given.
    pub rows_out: u64,
    /// Bytes taken; for `source`, bytes read from the store.
    pub bytes_in: u64,
    /// Bytes given.
    pub bytes_out: u64,
    /// CPU time in nanoseconds, waiting not counted.
    pub cpu_ns: u64,
    /// Time in nanoseconds inside executions, summed over them.
    pub busy_ns: u64,
    /// Time in nanoseconds that chunks of rows waited for this operator's turn or for input.
    pub wait_input_ns: u64,
    /// Time in nanoseconds that its finished output waited to be taken.
    pub wait_output_ns: u64,
    /// Time in nanoseconds inside executions that passed without CPU time: `wait`, and reads of `source`.
    pub latency_ns: u64,
    /// Of the moment: bytes that wait for its turn; for `batch`, finished batches that wait for consumers.
    pub queue_bytes: u64,
    /// Concurrent executions as the pipeline file pins them.
    pub parallelism: Option<u32>,
}

impl OperatorStats {
    /// Adds another worker's counts.
    pub fn add(&mut self, other: &Self) {
        self.rows_in = self.rows_in.saturating_add(other.rows_in);
        self.rows_out = self.rows_out.saturating_add(other.rows_out);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
        self.wait_input_ns = self.wait_input_ns.saturating_add(other.wait_input_ns);
        self.wait_output_ns = self.wait_output_ns.saturating_add(other.wait_output_ns);
        self.latency_ns = self.latency_ns.saturating_add(other.latency_ns);
        self.queue_bytes = self.queue_bytes.saturating_add(other.queue_bytes);
    }

    /// Time in nanoseconds that rows waited for this operator's turn or its input, or in it.
    pub fn wait_ns(&self) -> u64 {
        self.wait_input_ns.saturating_add(self.latency_ns)
    }
}

/// A job's reads from the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Requests, repeated ones included.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time in nanoseconds from a request to its last byte, summed over requests.
    pub wait_ns: u64,
    /// Shards of which something was read.
    pub distinct_shards: u64,
    /// The size of these shards in bytes.
    pub distinct_shard_bytes: u64,
}

impl StoreStats {
    /// Adds another worker's counts. Shards that both have read are counted twice.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
        self.distinct_shards = self.distinct_shards.saturating_add(other.distinct_shards);
        self.distinct_shard_bytes = self.distinct_shard_bytes.saturating_add(other.distinct_shard_bytes);
    }
}

/// CPU time that a worker's process has used, in nanoseconds. Where several roles or workers share a process it is that
/// of all of them.
///
/// The operators of all of the process's jobs and `transport_ns` together are `process_ns`, within a few percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCpu {
    /// All threads.
    pub process_ns: u64,
    /// What the threads beside the CPU pool did for no operator: serving batches, connections, control, indexing.
    pub transport_ns: u64,
}

/// What a form of kept rows costs, tried on a few rows of a job.
///
/// The operator behind the cut was run on each of them as it is and in this form, on the same thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormStats {
    /// Operators before the cut, of those that run.
    pub after: u32,
    /// The form.
    pub form: CacheEncoding,
    /// Rows that were tried.
    pub rows: u64,
    /// Their bytes as they are.
    pub plain_bytes: u64,
    /// Their bytes in this form.
    pub bytes: u64,
    /// CPU time in nanoseconds of making the form.
    pub make_ns: u64,
    /// CPU time in nanoseconds of the operator behind the cut on the rows as they are.
    pub plain_ns: u64,
    /// The same on the rows in this form.
    pub use_ns: u64,
}

impl FormStats {
    /// Adds another worker's counts of the same form.
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.plain_bytes = self.plain_bytes.saturating_add(other.plain_bytes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.make_ns = self.make_ns.saturating_add(other.make_ns);
        self.plain_ns = self.plain_ns.saturating_add(other.plain_ns);
        self.use_ns = self.use_ns.saturating_add(other.use_ns);
    }
}

/// What one worker has done for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerJobStats {
    /// The job.
    pub job: JobId,
    /// Operators in order. Empty where the worker does not trace.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store.
    pub store: StoreStats,
    /// Time in nanoseconds in which its next rows waited for memory, and its consumer for them.
    pub memory_wait_ns: u64,
    /// Peak resident set of the worker's process in bytes.
    pub peak_rss_bytes: u64,
    /// Nanoseconds since the worker started: when these counts were taken.
    pub elapsed_ns: u64,
    /// CPU time of the worker's process then, whatever it was spent on.
    pub cpu: ProcessCpu,
    /// What forms of kept rows cost, where some were tried.
    pub forms: Vec<FormStats>,
}

/// What a consumer has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerStats {
    /// Rows delivered.
    pub rows: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Time in nanoseconds that the consumer waited for a batch.
    pub stall_ns: u64,
    /// Time in nanoseconds that the user spent between taking a batch and asking for the next: `rows / step_ns` is the
    /// rate that it could take.
    pub step_ns: u64,
    /// Part of that time in nanoseconds in which batches were copied to where the user wants them, such as to an accelerator.
    pub copy_ns: u64,
    /// Bytes received from workers on other hosts, as they are once unpacked.
    pub network_bytes: u64,
}

impl ConsumerStats {
    /// Adds another consumer's counts.
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.batches = self.batches.saturating_add(other.batches);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.stall_ns = self.stall_ns.saturating_add(other.stall_ns);
        self.step_ns = self.step_ns.saturating_add(other.step_ns);
        self.copy_ns = self.copy_ns.saturating_add(other.copy_ns);
        self.network_bytes = self.network_bytes.saturating_add(other.network_bytes);
    }
}

/// The sum of counts; the largest number where it is beyond that. Whoever reports may say anything, and is not to stop those
/// who add it up.
pub fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
