//! Upper limits of jobs whose tenants have quotas of cores, where the plan does not give them: before a job is planned, and where
//! nobody plans. A tenant's jobs that run have even parts of its quota, each on as few workers as have the cores, so that the
//! first rows of none wait for crumbs of many. Plans reckon with the rest: `core/planner/src/observe/tenants.rs`.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{LEAST_CORES, TenantPart};

use super::Cluster;
use super::candidates::{LeaseCandidate, spread};
use super::job::TrackedJob;

/// Jobs that run, by tenant: counted as they begin and end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RunningJobs(BTreeMap<String, u32>);

impl RunningJobs {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// A job of a tenant that ran before, or not, runs now, or not.
    pub(super) fn count(&mut self, tenant: &str, ran: bool, runs: bool) {
        if runs && !ran {
            *self.0.entry(tenant.to_owned()).or_default() += 1;
        }
        if ran
            && !runs
            && let Some(left) = self.0.get_mut(tenant)
        {
            *left -= 1;
            if *left == 0 {
                self.0.remove(tenant);
            }
        }
    }

    /// Those of all tenants.
    pub(super) fn all(&self) -> usize {
        self.0.values().map(|jobs| *jobs as usize).sum()
    }

    fn of(&self, tenant: &str) -> Option<u32> {
        self.0.get(tenant).copied()
    }
}

impl Cluster {
    /// Empty where no tenant has a quota of cores.
    pub(super) fn running_by_tenant(&self) -> RunningJobs {
        let tenants = &self.settings.tenants;
        if tenants.default.cores.is_none() && tenants.tenants.values().all(|quota| quota.cores.is_none()) {
            return RunningJobs::new();
        }
        self.running.clone()
    }

    fn quota_of(&self, job: &TrackedJob) -> Option<f64> {
        self.settings.tenants.quota_of(&job.spec.tenant).cores
    }

    /// Whose these jobs of a worker are, and each tenant's even part of what may be kept for it: pipelines that name a cache
    /// have rows kept whatever is planned.
    pub(super) fn tenant_parts(&self, jobs: &BTreeSet<JobId>) -> Vec<TenantPart> {
        let mut parts: BTreeMap<&str, TenantPart> = BTreeMap::new();
        for (id, job) in jobs.iter().filter_map(|id| Some((id, self.jobs.get(id)?))) {
            let (tenant, quota) =
                (job.spec.tenant.as_str(), self.settings.tenants.quota_of(&job.spec.tenant));
            if tenant.is_empty() && quota.cache_bytes.is_none() {
                continue;
            }
            let part = parts.entry(tenant).or_insert_with(|| TenantPart {
                tenant: tenant.to_owned(),
                cache_bytes: quota.cache_bytes.map(|bytes| (bytes / self.workers.len().max(1) as f64) as u64),
                jobs: Vec::new(),
            });
            part.jobs.push(*id);
        }
        parts.into_values().collect()
    }

    /// Workers for a job that the plan does not place: of `jobs` that run.
    pub(super) fn unplaced_parts(
        &self,
        id: JobId,
        live: &[WorkerId],
        jobs: usize,
        running: &RunningJobs,
    ) -> Vec<LeaseCandidate> {
        let parts = spread(live, id, jobs);
        let job = &self.jobs[&id];
        let (Some(quota), Some(own)) = (self.quota_of(job), running.of(&job.spec.tenant)) else {
            return parts;
        };
        let even = quota / f64::from(own.max(1));
        let cores = |part: &LeaseCandidate| {
            self.workers.get(&part.worker).map_or(1.0, |worker| f64::from(worker.cores.max(1)))
        };
        // From different places on, so that neighbours do not all sit on the first worker.
        let start = (id.0 as usize).wrapping_mul(7) % parts.len().max(1);
        let mut chosen: Vec<(WorkerId, f64)> = Vec::new();
        let mut there = 0.0;
        for part in parts.iter().cycle().skip(start).take(parts.len()) {
            if there >= even && !chosen.is_empty() {
                break;
            }
            there += cores(part);
            chosen.push((part.worker, cores(part)));
        }
        let share = (even / there).min(1.0);
        let mut parts: Vec<LeaseCandidate> = chosen
            .into_iter()
            .map(|(worker, cores)| LeaseCandidate { worker, cores: cores * share })
            .collect();
        parts.sort_unstable_by_key(|part| part.worker);
        parts
    }

    /// Notes what a job may use of workers, and tells those for which that has changed. Without parts the plan says it, or
    /// nothing does.
    pub(super) fn cap(&mut self, id: JobId, parts: Option<&[LeaseCandidate]>) {
        let has_quota = self.jobs.get(&id).is_some_and(|job| self.quota_of(job).is_some());
        let caps: BTreeMap<WorkerId, f64> = match parts.filter(|_| has_quota) {
            Some(parts) => parts.iter().map(|part| (part.worker, part.cores)).collect(),
            None => BTreeMap::new(),
        };
        let before = self.capped.get(&id);
        if before.map_or(caps.is_empty(), |before| *before == caps) {
            return;
        }
        let before = self.capped.remove(&id).unwrap_or_default();
        let workers: BTreeSet<WorkerId> = before.keys().chain(caps.keys()).copied().collect();
        for worker in workers.iter().filter(|worker| before.get(worker) != caps.get(worker)) {
            if let Some(found) = self.workers.get_mut(worker) {
                found.revision += 1;
            }
        }
        if !caps.is_empty() {
            self.capped.insert(id, caps);
        }
    }

    /// Cores that a job may use at most of a worker for which the plan says nothing; 0 is no limit. Where it has no part it may
    /// still have splits, for want of another worker or from before: for them it gets the quota's even part of each worker.
    pub(super) fn unplanned_cap(&self, id: JobId, worker: WorkerId) -> f64 {
        let Some(quota) = self.jobs.get(&id).and_then(|job| self.quota_of(job)) else { return 0.0 };
        let cap = self.capped.get(&id).and_then(|caps| caps.get(&worker));
        cap.copied().unwrap_or(quota / self.workers.len().max(1) as f64).max(LEAST_CORES)
    }
}
