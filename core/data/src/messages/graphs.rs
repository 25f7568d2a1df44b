//! The graphs of a worker, and the jobs that sample them.

use super::WorkerAddress;
use crate::graph::description::GraphHash;
use crate::ids::{JobId, WorkerId};

/// Maximum number of graphs in a report. A worker holds few graphs.
pub const MAX_HELD_GRAPHS: usize = 256;
/// Maximum number of jobs that sample a graph in a report.
pub const MAX_GRAPH_JOBS: usize = 4_096;

/// The graphs that a worker holds, and its jobs that sample a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphReport {
    /// The graphs that the worker holds, also those that no job samples now.
    pub held: Vec<HeldGraph>,
    /// The jobs of the plan that sample a graph.
    pub jobs: Vec<GraphJobLoad>,
}

/// A graph that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldGraph {
    /// The fingerprint of everything that sampled graphs depend on.
    pub topology: GraphHash,
    /// The bytes of the topology in memory.
    pub bytes: u64,
}

/// How far a worker has loaded a job that samples a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphJobLoad {
    /// The job.
    pub job: JobId,
    /// The state of the load.
    pub state: GraphLoadState,
}

/// The state of the load of a job that samples a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GraphLoadState {
    /// The worker is loading the job with its graph.
    Loading,
    /// The worker can compute splits of the job.
    Loaded,
    /// The worker cannot load the job. Fetches of its splits return the reason.
    Failed,
}

/// The workers of a job that partitions the features of its graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionedJob {
    /// The job.
    pub job: JobId,
    /// All workers of the job with their addresses, including the receiver, in ascending order.
    pub workers: Vec<(WorkerId, WorkerAddress)>,
    /// The ticket for requests to these workers; empty without tickets. The coordinator's service sets the ticket, not the state
    /// machine.
    pub ticket: String,
}

impl GraphReport {
    /// Limits the lengths of the lists of a received report.
    pub fn truncate(&mut self) {
        self.held.truncate(MAX_HELD_GRAPHS);
        self.jobs.truncate(MAX_GRAPH_JOBS);
    }

    /// Whether the worker holds a graph.
    pub fn holds(&self, topology: GraphHash) -> bool {
        self.held.iter().any(|graph| graph.topology == topology)
    }

    /// How far the worker has loaded a job; `None` if it is not loading the job.
    pub fn state_of(&self, job: JobId) -> Option<GraphLoadState> {
        self.jobs.iter().find(|load| load.job == job).map(|load| load.state)
    }
}
