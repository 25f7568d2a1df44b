//! Counters of one worker or one consumer for one job. Counters are cumulative, so a lost report does not lose counts.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ConsumerStats, GraphStats, OperatorStats, StoreStats};

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
    /// CPU time that the worker's process spent on the job, in nanoseconds.
    pub process_cpu_ns: u64,
    /// Memory that the job's rows currently occupy, in bytes.
    pub held_bytes: u64,
    /// Time that a ready group waited because it did not fit into the memory budget, in nanoseconds.
    pub memory_wait_ns: u64,
    /// Operators in order: the first is the source, and the last is the batch operator. The latency of the source is 0,
    /// because `store.wait_ns` already counts this time.
    pub operators: Vec<OperatorStats>,
    /// Reads from the store.
    pub store: StoreStats,
    /// The sampled graphs. `None` if the job samples no graph.
    pub graph: Option<GraphStats>,
}

/// The counters of one consumer, summed over its sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct JobConsumerSample {
    /// The consumer's number, from 0.
    pub consumer: u32,
    /// The consumer's counters.
    pub stats: ConsumerStats,
    /// Time that the consumer waited for batches or processed them, in nanoseconds.
    pub elapsed_ns: u64,
}
