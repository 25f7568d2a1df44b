//! Mix weight changes of jobs, as sent to workers in a plan.

use crate::ids::JobId;
use crate::mix::MixChange;

/// The mix weight changes of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMixChanges {
    /// The job.
    pub job: JobId,
    /// All changes, in order.
    pub changes: Vec<MixChange>,
}
