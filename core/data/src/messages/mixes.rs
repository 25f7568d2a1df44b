//! The changes of a job's mix that a plan sends to workers.

use crate::ids::JobId;
use crate::mix::MixChange;

/// The changes of a job's mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMixChanges {
    /// The job.
    pub job: JobId,
    /// All changes, in order.
    pub changes: Vec<MixChange>,
}
