//! Statistics in the reports from workers and consumers. Counters start at 0 when the worker or consumer starts, and only
//! increase. The documentation of a gauge begins with "Gauge".

use serde::{Deserialize, Serialize};

use super::graph_stats::GraphStats;
use crate::ids::JobId;
use crate::pipeline::CacheEncoding;

/// Statistics of one operator.
///
/// An execution is one call on a chunk of rows. `busy_ns / elapsed_ns` is the mean number of concurrent executions, and
/// `cpu_ns / busy_ns` is the fraction of that time spent on the CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorStats {
    /// The operator's unique name in the pipeline. `source` is the first operator and `batch` the last.
    pub name: String,
    /// Input rows.
    pub rows_in: u64,
    /// Output rows.
    pub rows_out: u64,
    /// Input bytes; for `source`, bytes read from the store.
    pub bytes_in: u64,
    /// Output bytes.
    pub bytes_out: u64,
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Total time of all executions in nanoseconds.
    pub busy_ns: u64,
    /// Time in nanoseconds that chunks waited for an execution or for input.
    pub wait_input_ns: u64,
    /// Time in nanoseconds that finished output waited to be consumed.
    pub wait_output_ns: u64,
    /// Time in nanoseconds that executions spent off the CPU, such as in `wait` or in reads by `source`.
    pub latency_ns: u64,
    /// Gauge: bytes that wait for an execution; for `batch`, bytes of finished batches that wait for consumers.
    pub queue_bytes: u64,
    /// The `parallelism` that the pipeline file sets.
    pub parallelism: Option<u32>,
}

impl OperatorStats {
    /// Adds the statistics of another worker.
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

    /// Time in nanoseconds that rows spent waiting for an execution, for input, or while an execution waited.
    pub fn wait_ns(&self) -> u64 {
        self.wait_input_ns.saturating_add(self.latency_ns)
    }
}

/// A job's reads from the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// The number of requests, including retries.
    pub requests: u64,
    /// The number of bytes read.
    pub bytes: u64,
    /// Total time of all requests in nanoseconds, from the request to the last byte.
    pub wait_ns: u64,
    /// The number of distinct shards that were read.
    pub distinct_shards: u64,
    /// The total size of the distinct shards in bytes.
    pub distinct_shard_bytes: u64,
}

impl StoreStats {
    /// Adds the statistics of another worker. Shards read by both workers count twice.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
        self.distinct_shards = self.distinct_shards.saturating_add(other.distinct_shards);
        self.distinct_shard_bytes = self.distinct_shard_bytes.saturating_add(other.distinct_shard_bytes);
    }
}

/// CPU time of a worker's process in nanoseconds. Roles and workers that share a process report the total of the process.
///
/// The CPU time of all operators plus `transport_ns` equals `process_ns` to within a few percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCpu {
    /// CPU time of all threads.
    pub process_ns: u64,
    /// CPU time outside of operators: batch delivery, connections, control messages and indexing.
    pub transport_ns: u64,
}

/// Costs of a cache encoding, measured on a sample of a job's rows.
///
/// The operator after the cache point runs on both the original and the encoded form of each row, on the same thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodingStats {
    /// The number of stage operators before the cache point.
    pub operators_before: u32,
    /// The encoding.
    pub encoding: CacheEncoding,
    /// The number of measured rows.
    pub rows: u64,
    /// The size of the original rows in bytes.
    pub plain_bytes: u64,
    /// The size of the encoded rows in bytes.
    pub encoded_bytes: u64,
    /// CPU time spent on encoding, in nanoseconds.
    pub encode_ns: u64,
    /// CPU time in nanoseconds of the operator after the cache point on the original rows.
    pub plain_ns: u64,
    /// CPU time in nanoseconds of the operator after the cache point on the encoded rows.
    pub encoded_ns: u64,
}

impl EncodingStats {
    /// Adds the measurements of another worker for the same encoding.
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.plain_bytes = self.plain_bytes.saturating_add(other.plain_bytes);
        self.encoded_bytes = self.encoded_bytes.saturating_add(other.encoded_bytes);
        self.encode_ns = self.encode_ns.saturating_add(other.encode_ns);
        self.plain_ns = self.plain_ns.saturating_add(other.plain_ns);
        self.encoded_ns = self.encoded_ns.saturating_add(other.encoded_ns);
    }
}

/// Statistics of one worker for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerJobStats {
    /// The job.
    pub job: JobId,
    /// The operators in order. Empty if the worker does not trace operators.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store.
    pub store: StoreStats,
    /// Time in nanoseconds during which the job's next rows waited for memory while a consumer waited for these rows.
    pub memory_wait_ns: u64,
    /// Peak resident set size of the worker's process in bytes.
    pub peak_rss_bytes: u64,
    /// Nanoseconds from the start of the worker to the measurement of these statistics.
    pub elapsed_ns: u64,
    /// CPU time of the worker's process for all jobs.
    pub cpu: ProcessCpu,
    /// Measured costs of the encodings of cached rows.
    pub encodings: Vec<EncodingStats>,
    /// The sampled graphs. `None` if the job samples no graph.
    pub graph: Option<GraphStats>,
}

/// Statistics of a consumer.
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
    /// Time in nanoseconds that the training loop spent between two requests for batches. `rows / step_ns` is the rate at
    /// which the loop could consume rows.
    pub step_ns: u64,
    /// The part of `step_ns` spent copying batches, for example to an accelerator.
    pub copy_ns: u64,
    /// Bytes received from workers on other hosts, after decompression.
    pub network_bytes: u64,
    /// Rows that failed, and that workers skipped or replaced.
    #[serde(default)]
    pub skipped_rows: u64,
    /// Gauge: the newest timestamp of delivered records, in milliseconds since 1970; 0 if the source has no timestamps.
    pub newest_ms: u64,
}

impl ConsumerStats {
    /// Adds the statistics of another consumer.
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.batches = self.batches.saturating_add(other.batches);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.stall_ns = self.stall_ns.saturating_add(other.stall_ns);
        self.step_ns = self.step_ns.saturating_add(other.step_ns);
        self.copy_ns = self.copy_ns.saturating_add(other.copy_ns);
        self.network_bytes = self.network_bytes.saturating_add(other.network_bytes);
        self.skipped_rows = self.skipped_rows.saturating_add(other.skipped_rows);
        self.newest_ms = self.newest_ms.max(other.newest_ms);
    }
}

/// Returns the sum of counters, saturating at [`u64::MAX`]. A sum must not panic, because the counters come from other
/// processes.
pub fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
