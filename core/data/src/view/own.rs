//! The part of a cluster snapshot that a tenant may see: the tenant's jobs and their resources.

use std::collections::BTreeSet;

use super::{CacheView, ClusterView, WorkerView};
use crate::ids::JobId;
use crate::messages::JobStatus;
use crate::messages::saturating_sum;

#[cfg(test)]
mod tests;

impl ClusterView {
    /// The part about a tenant's jobs. Information about all jobs together would reveal other tenants, so the planner's
    /// reasons, wanted workers and scaling are removed.
    #[must_use]
    pub fn of_tenant(self, tenant: &str) -> Self {
        let own = |job: &super::JobView| job.tenant == tenant;
        let jobs: Vec<super::JobView> = self.jobs.into_iter().filter(own).collect();
        let ids: BTreeSet<JobId> = jobs.iter().map(|job| job.job).collect();
        Self {
            now_ms: self.now_ms,
            workers: self.workers.into_iter().filter_map(|worker| worker.for_jobs(&ids)).collect(),
            caches: self.caches.into_iter().filter_map(|cache| cache.for_jobs(&ids)).collect(),
            jobs,
            ..Self::default()
        }
    }
}

impl WorkerView {
    /// The worker with only these jobs, and without numbers of the whole process; `None` if it works on none of the jobs.
    fn for_jobs(mut self, jobs: &BTreeSet<JobId>) -> Option<Self> {
        self.parts.retain(|part| jobs.contains(&part.job));
        if self.parts.is_empty() {
            return None;
        }
        Some(Self {
            used_cores: self.parts.iter().map(|part| part.used_cores).sum(),
            held_bytes: saturating_sum(self.parts.iter().map(|part| part.held_bytes)),
            memory: Vec::new(),
            peak_rss_bytes: None,
            memory_full: false,
            ..self
        })
    }
}

impl CacheView {
    /// The cache with only these jobs as readers; `None` if no job reads it. The hit rate is removed if other jobs read the
    /// cache too.
    fn for_jobs(mut self, jobs: &BTreeSet<JobId>) -> Option<Self> {
        let readers = self.jobs.len();
        self.jobs.retain(|job| jobs.contains(job));
        if self.jobs.len() < readers {
            self.found_share = None;
        }
        (!self.jobs.is_empty()).then_some(self)
    }
}

impl JobStatus {
    /// The status without numbers of whole processes, which include the jobs of other tenants.
    #[must_use]
    pub fn without_process_totals(self) -> Self {
        Self {
            worker_cpu: Vec::new(),
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            ..self
        }
    }
}
