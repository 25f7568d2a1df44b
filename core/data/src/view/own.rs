//! What of the cluster a tenant may see: its own jobs, and what is done for them.

use std::collections::BTreeSet;

use super::{CacheView, ClusterView, WorkerView};
use crate::ids::JobId;
use crate::messages::JobStatus;
use crate::messages::saturating_sum;

#[cfg(test)]
mod tests;

impl ClusterView {
    /// The part that is about a tenant's jobs. What is of all jobs together tells of the others, so it is left out: what
    /// the planner says, how many workers are wanted, and what becomes of their number.
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
    /// What it does for these jobs; `None` where that is nothing. Numbers of its whole process are left out.
    fn for_jobs(mut self, jobs: &BTreeSet<JobId>) -> Option<Self> {
        self.parts.retain(|part| jobs.contains(&part.job));
        if self.parts.is_empty() {
            return None;
        }
        Some(Self {
            used_cores: self.parts.iter().map(|part| part.used_cores).sum(),
            held_bytes: saturating_sum(self.parts.iter().map(|part| part.held_bytes)),
            peak_rss_bytes: None,
            memory_full: false,
            ..self
        })
    }
}

impl CacheView {
    /// The same with these jobs as its readers; `None` where they are none. What is found is seen over all readers, so it is
    /// left out where there are others.
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
    /// The same without what whole processes did, which others' jobs are part of.
    #[must_use]
    pub fn without_processes(self) -> Self {
        Self {
            worker_cpu: Vec::new(),
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            ..self
        }
    }
}
