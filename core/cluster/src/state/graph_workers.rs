//! The workers that load a job which samples a graph.

use std::collections::BTreeSet;

use feedline_data::ids::WorkerId;

/// The workers of one job.
#[derive(Debug, Default)]
pub(crate) struct GraphWorkers {
    /// The workers whose plans contain the job, loaded or not.
    pub(crate) assigned: BTreeSet<WorkerId>,
    /// Whether a worker without the graph may hold leases, because the workers or their loads have changed.
    pub(crate) has_changed: bool,
    /// The workers that were lost while they loaded the job, since a worker has last loaded it.
    pub(crate) lost: BTreeSet<WorkerId>,
}
