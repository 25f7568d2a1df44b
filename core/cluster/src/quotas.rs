//! Core limits of unplanned jobs of tenants with a core quota: the running jobs of a tenant share its quota evenly. The
//! planner handles quotas of planned jobs in `core/planner/src/observe/tenants.rs`.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{MIN_CORES, TenantCacheQuota};

use crate::Cluster;
use crate::state::candidates::LeaseCandidate;
use crate::state::job::TrackedJob;

impl Cluster {
    /// Returns the core quota of a job's tenant.
    pub(crate) fn cores_quota(&self, job: &TrackedJob) -> Option<f64> {
        self.settings.tenants.quota_of(&job.spec.tenant).cores
    }

    /// Returns the tenants of a worker's jobs with the worker's even share of each cache quota. The shares also limit
    /// `cache` operators, which do not depend on the plan.
    pub(crate) fn tenant_cache_quotas(&self, jobs: &BTreeSet<JobId>) -> Vec<TenantCacheQuota> {
        let mut parts: BTreeMap<&str, TenantCacheQuota> = BTreeMap::new();
        for (id, job) in jobs.iter().filter_map(|id| Some((id, self.jobs.get(id)?))) {
            let (tenant, quota) =
                (job.spec.tenant.as_str(), self.settings.tenants.quota_of(&job.spec.tenant));
            if tenant.is_empty() && quota.cache_bytes.is_none() {
                continue;
            }
            let part = parts.entry(tenant).or_insert_with(|| TenantCacheQuota {
                tenant: tenant.to_owned(),
                cache_bytes: quota.cache_bytes.map(|bytes| (bytes / self.workers.len().max(1) as f64) as u64),
                jobs: Vec::new(),
            });
            part.jobs.push(*id);
        }
        parts.into_values().collect()
    }

    /// Sets the core limits of an unplanned job, and changes the plans of the workers with a new limit. `None` removes the
    /// limits of a job that is now planned.
    pub(crate) fn set_core_limits(&mut self, id: JobId, candidates: Option<&[LeaseCandidate]>) {
        let has_quota = self.jobs.get(&id).is_some_and(|job| self.cores_quota(job).is_some());
        let limits: BTreeMap<WorkerId, f64> = match candidates.filter(|_| has_quota) {
            Some(candidates) => {
                candidates.iter().map(|candidate| (candidate.worker, candidate.cores)).collect()
            }
            None => BTreeMap::new(),
        };
        let before = self.core_limits.remove(&id).unwrap_or_default();
        let workers: BTreeSet<WorkerId> = before.keys().chain(limits.keys()).copied().collect();
        for worker in workers.iter().filter(|worker| before.get(worker) != limits.get(worker)) {
            if let Some(found) = self.workers.get_mut(worker) {
                found.revision += 1;
            }
        }
        if !limits.is_empty() {
            self.core_limits.insert(id, limits);
        }
    }

    /// Returns the maximum number of cores that an unplanned job may use on a worker; 0 means no limit. A worker that is no
    /// longer a candidate may still hold splits of the job. Its limit is the worker's even share of the quota.
    pub(crate) fn unplanned_core_limit(&self, id: JobId, worker: WorkerId) -> f64 {
        let Some(quota) = self.jobs.get(&id).and_then(|job| self.cores_quota(job)) else { return 0.0 };
        let cap = self.core_limits.get(&id).and_then(|limits| limits.get(&worker));
        cap.copied().unwrap_or(quota / self.workers.len().max(1) as f64).max(MIN_CORES)
    }
}
