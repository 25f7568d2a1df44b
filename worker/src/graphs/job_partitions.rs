//! The jobs of the plan that partition the features of their graph, with their workers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::PartitionedJob;
use feedline_graph::{GraphFolder, StoredFeature};

use super::job_peers::{JobPeers, PeerWorkers};
use super::part::{PartRequest, PartSource};
use super::partitioned_feature::{PartitionedFeature, SliceMemory};

/// The workers of all jobs that partition features.
pub(crate) struct JobPartitions {
    worker: WorkerId,
    directory: SharedDirectory,
    jobs: Mutex<BTreeMap<JobId, Arc<JobPeers>>>,
}

/// Finds other workers. It is empty until the worker knows how to connect to them.
type SharedDirectory = Arc<OnceLock<Arc<dyn PeerWorkers>>>;

impl fmt::Debug for JobPartitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobPartitions").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl JobPartitions {
    /// Creates the jobs of this worker.
    pub(crate) fn new(worker: WorkerId) -> Arc<Self> {
        Arc::new(Self { worker, directory: Arc::default(), jobs: Mutex::default() })
    }

    /// Sets how other workers are found. Only the first call has an effect.
    pub(crate) fn set_directory(&self, directory: Arc<dyn PeerWorkers>) {
        let _ = self.directory.set(directory);
    }

    /// Replaces the workers of all jobs of the plan.
    pub(crate) fn apply(&self, planned: Vec<PartitionedJob>) {
        let mut jobs = self.lock();
        // A loaded job keeps its workers until it is removed.
        jobs.retain(|id, peers| {
            Arc::strong_count(peers) > 1 || planned.iter().any(|planned| planned.job == *id)
        });
        for PartitionedJob { job, workers, ticket } in planned {
            let peers = jobs.entry(job).or_insert_with(|| JobPeers::new(job, Arc::clone(&self.directory)));
            peers.set(workers.into_iter().collect(), ticket);
        }
    }

    /// Creates the features of a job. `features` contains the place of each feature in the summary of the job, and its request.
    ///
    /// # Errors
    /// Returns a message if a feature does not exist, or its rows are too large.
    pub(super) fn features_of(
        &self,
        job: JobId,
        folder: &Arc<GraphFolder>,
        features: Vec<(PartSource, PartRequest)>,
        memory: &SliceMemory,
    ) -> Result<Vec<(PartSource, Arc<PartitionedFeature>)>, String> {
        let peers = self.peers_of(job);
        let mut partitioned = Vec::with_capacity(features.len());
        for (place, request) in features {
            let stored = match request.source {
                PartSource::NodeFeature { node_type, feature } => {
                    let nodes = folder.description().nodes.get(node_type);
                    nodes.and_then(|nodes| Some((nodes.features.get(feature)?, nodes.count)))
                }
                _ => None,
            };
            let (feature, rows) = stored.ok_or("the graph has no such feature; please report this")?;
            let stored = StoredFeature::new(Arc::clone(folder), feature.clone(), rows);
            let stored = stored.map_err(|error| error.to_string())?;
            let feature = PartitionedFeature::new(stored, self.worker, Arc::clone(&peers), memory.clone());
            partitioned.push((place, feature));
        }
        Ok(partitioned)
    }

    /// The workers of a job. None are known before the plan contains the job.
    fn peers_of(&self, job: JobId) -> Arc<JobPeers> {
        let mut jobs = self.lock();
        let peers = jobs.entry(job).or_insert_with(|| JobPeers::new(job, Arc::clone(&self.directory)));
        Arc::clone(peers)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Arc<JobPeers>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
