//! Tasks of a worker that list and index datasets.

use crate::ids::TaskId;
use crate::manifest::{IndexedShard, ShardRef};
use crate::pipeline::Source;
use crate::tenants::TenantReads;

/// A task to list a source, or to index some of its shards.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Identifies the task within one run of the coordinator's state machine.
    pub id: TaskId,
    /// The source.
    pub source: Source,
    /// The shards to index; `None` lists the shards of the source.
    pub shards: Option<Vec<ShardRef>>,
    /// The read permissions of the job's tenant.
    pub reads: TenantReads,
    /// Whether the task lists the present ends of the partitions of a running job. An unavailable source then is a result,
    /// not an error.
    pub lists_growth: bool,
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskResult {
    /// The task.
    pub id: TaskId,
    /// The output, or a one-sentence error message.
    pub outcome: Result<TaskOutput, String>,
}

/// How far an indexing task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskProgress {
    /// The task.
    pub id: TaskId,
    /// The bytes of its shards that it has read.
    pub read_bytes: u64,
}

/// The output of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskOutput {
    /// The shards of a source.
    Listed(Vec<ShardRef>),
    /// The index of each shard of the task, in order.
    Indexed(Vec<IndexedShard>),
    /// The source of a running job is unavailable, for this reason.
    Unavailable(String),
}
