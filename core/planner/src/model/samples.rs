//! Counters of one worker or one consumer for one job. Counters are cumulative, so a lost report does not lose counts.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ConsumerStats, OperatorStats, StoreStats};

/// The counters of one worker for one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobWorkerSample {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's type. Workers of one type are equally fast.
    pub worker_type: String,
    /// CPU cores of the worker.
    pub cores: f64,
    /// Nanoseconds since the worker started.
    pub elapsed_ns: u64,
    /// CPU time in nanoseconds that the worker's process spent on the job.
    pub process_cpu_ns: u64,
    /// Bytes of memory that the job's rows occupy now.
    pub held_bytes: u64,
    /// Time in nanoseconds for which a group was ready but did not fit the memory budget.
    pub memory_wait_ns: u64,
    /// Operators in order: the first is the source, the last is the batch. The latency of the source is 0, since
    /// `store.wait_ns` counts the same time.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store.
    pub store: StoreStats,
}

/// The counters of one consumer, summed over its sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct JobConsumerSample {
    /// The consumer's number, from 0.
    pub consumer: u32,
    /// The consumer's counters.
    pub stats: ConsumerStats,
    /// Time in nanoseconds that the consumer waited or worked on batches.
    pub elapsed_ns: u64,
}
