//! How mixes of jobs change, as workers are told.

use crate::ids::JobId;
use crate::mix::MixChange;

/// How the mix of a job has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMixChanges {
    /// The job.
    pub job: JobId,
    /// All changes, in order.
    pub changes: Vec<MixChange>,
}
