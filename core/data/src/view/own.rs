//! The part of a cluster snapshot that a tenant may see: the tenant's jobs and their resources.

use std::collections::BTreeSet;

use super::{CacheView, ClusterView, WorkerView};
use crate::ids::JobId;
use crate::messages::JobStatus;
use crate::messages::saturating_sum;

#[cfg(test)]
mod tests;

impl ClusterView {
    /// Returns the part of the snapshot that describes a tenant's jobs. The planner's reasons, the wanted workers and the
    /// scaling decisions are removed, because they reveal the jobs of other tenants.
    #[must_use]
    pub fn for_tenant(self, tenant: &str) -> Self {
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
    /// Returns the worker with only the given jobs and without numbers about the whole process. `None` if it works on none
    /// of the jobs.
    fn for_jobs(mut self, jobs: &BTreeSet<JobId>) -> Option<Self> {
        self.job_usage.retain(|part| jobs.contains(&part.job));
        if self.job_usage.is_empty() {
            return None;
        }
        Some(Self {
            used_cores: self.job_usage.iter().map(|part| part.used_cores).sum(),
            finished_bytes: saturating_sum(self.job_usage.iter().map(|part| part.finished_bytes)),
            memory: Vec::new(),
            peak_rss_bytes: None,
            memory_full: false,
            ..self
        })
    }
}

impl CacheView {
    /// Returns the cache with only the given jobs as readers, or `None` if none of them reads it. The hit rate is removed if
    /// other jobs also read the cache.
    fn for_jobs(mut self, jobs: &BTreeSet<JobId>) -> Option<Self> {
        let readers = self.jobs.len();
        self.jobs.retain(|job| jobs.contains(job));
        if self.jobs.len() < readers {
            self.hit_rate = None;
        }
        (!self.jobs.is_empty()).then_some(self)
    }
}

impl JobStatus {
    /// Removes numbers about whole processes, because they include the jobs of other tenants.
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
