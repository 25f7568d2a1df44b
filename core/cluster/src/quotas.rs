//! Limits of jobs of tenants with a quota of cores, before the planner sets limits: the running jobs of a tenant have even parts
//! of its quota. The planner handles quotas in `core/planner/src/observe/tenants.rs`.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{MIN_CORES, TenantCacheQuota};

use crate::Cluster;
use crate::state::candidates::LeaseCandidate;
use crate::state::job::TrackedJob;

impl Cluster {
    /// The quota of cores of a job's tenant.
    pub(crate) fn cores_quota(&self, job: &TrackedJob) -> Option<f64> {
        self.settings.tenants.quota_of(&job.spec.tenant).cores
    }

    /// The tenants of the jobs of a worker, and the even part of each tenant's cache quota. Pipelines with a `cache` operator
    /// use caches whatever the plan says.
    pub(crate) fn tenant_parts(&self, jobs: &BTreeSet<JobId>) -> Vec<TenantCacheQuota> {
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

    /// Sets the limits of a job without a plan, and changes the plans of the workers with a new limit. `None` removes the
    /// limits, since the plan contains them.
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

    /// Most cores that a job without an allocation may use of a worker; 0 for no limit. A worker that is not among the job's
    /// candidates may still hold splits of it: for them the job has the quota's even part of each worker.
    pub(crate) fn unplanned_core_limit(&self, id: JobId, worker: WorkerId) -> f64 {
        let Some(quota) = self.jobs.get(&id).and_then(|job| self.cores_quota(job)) else { return 0.0 };
        let cap = self.core_limits.get(&id).and_then(|limits| limits.get(&worker));
        cap.copied().unwrap_or(quota / self.workers.len().max(1) as f64).max(MIN_CORES)
    }
}
