//! The commits of delivered offsets that the plans of workers contain. The state is soft: a new leader begins again.

use std::collections::BTreeMap;

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::DeliveredPrefix;

use super::deadlines::Deadlines;

/// The commits in the plans of workers.
#[derive(Debug, Default)]
pub(crate) struct GroupCommits {
    pub(crate) planned: BTreeMap<JobId, PlannedCommit>,
    /// The time of the next commit of a running job, or of the end of the commit of an ended job.
    pub(crate) due: Deadlines<JobId>,
}

/// The commit of one job, and the worker that writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedCommit {
    pub(crate) worker: WorkerId,
    pub(crate) delivered: DeliveredPrefix,
    pub(crate) offsets: Vec<PartitionOffset>,
}
