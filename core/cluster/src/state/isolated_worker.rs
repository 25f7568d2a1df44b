//! A worker that is reserved for one suspect.

use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::layout::SplitRef;

/// A worker that is reserved for one suspect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IsolatedWorker {
    pub(crate) worker: WorkerId,
    pub(crate) suspect: Suspect,
    pub(crate) since: Millis,
}

/// What may have crashed its workers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Suspect {
    Split(JobId, SplitRef),
    Task(JobId, TaskId),
}
