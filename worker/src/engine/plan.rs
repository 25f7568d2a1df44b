//! Applies a plan from the coordinator: tenants, allocations, mix changes, segments and leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use feedline_data::ids::JobId;
use feedline_data::messages::{
    JobAllocation, JobMixChanges, JobSegments, Lease, TenantCacheQuota, WorkerPlan,
};

use super::Engine;
use super::job::JobContext;
use super::leases::LeaseChanges;
use super::state::EngineState;
use crate::cache::{Tenant, TenantCacheLimit};

impl Engine {
    /// Applies a plan. Its leases replace all current leases, and its allocations also apply to running groups. Returns
    /// the jobs to load.
    pub(crate) fn apply_plan(self: &Arc<Self>, plan: &WorkerPlan) -> BTreeSet<JobId> {
        let cores_by_job = |cores: fn(&JobAllocation) -> f64| {
            let cores = plan.allocations.iter().map(|allocation| (allocation.job, cores(allocation)));
            cores.filter(|(_, cores)| *cores > 0.0).collect()
        };
        let (shares, limits) =
            (cores_by_job(|allocation| allocation.cores), cores_by_job(|allocation| allocation.max_cores));
        self.resources.pool.set_shares(plan.cores, shares, limits);
        let (cache_limits, allocations) = (cache_limits_by_job(&plan.tenants), plan.allocations.iter());
        let allocations = allocations.map(|allocation| (allocation.job, allocation.clone())).collect();
        let unloaded = self.replace_leases(&plan.leases, |state| {
            state.cache_limits = cache_limits;
            state.set_allocations(allocations);
            // Leases require the mix changes and segments that determine their rows.
            state.set_mixes(&plan.mixes);
            state.set_segments(&plan.segments);
        });
        let mut state = self.lock();
        if state.graph_jobs.iter().eq(&plan.graph_jobs) {
            return unloaded;
        }
        state.set_graph_jobs(&plan.graph_jobs);
        state.unloaded()
    }

    /// Replaces all leases. Leases that are not in the list are revoked.
    pub(crate) fn set_leases(self: &Arc<Self>, leases: &[Lease]) {
        self.replace_leases(leases, |_| ());
    }

    /// Applies `change` to the state, and then replaces all leases. Returns the jobs to load.
    fn replace_leases(
        self: &Arc<Self>,
        leases: &[Lease],
        change: impl FnOnce(&mut EngineState),
    ) -> BTreeSet<JobId> {
        let mut planned = self.planned_leases.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = LeaseChanges::new(&planned, leases);
        let mut state = self.lock();
        change(&mut state);
        if state.change_leases(&changes) {
            let leases = &state.leases;
            self.resources.reading.retain_jobs(|job| leases.job(job).is_some());
            self.resources.caches.set_active(state.cache_values());
        }
        let unloaded = state.unloaded();
        *planned = changes.planned;
        self.pump_locked(state);
        unloaded
    }
}

/// Returns the tenant of each job, with its cache limit.
fn cache_limits_by_job(quotas: &[TenantCacheQuota]) -> BTreeMap<JobId, TenantCacheLimit> {
    let mut limits = BTreeMap::new();
    for quota in quotas {
        let tenant = Tenant::from(quota.tenant.as_str());
        let limit = TenantCacheLimit { tenant, bytes: quota.cache_bytes.unwrap_or(u64::MAX) };
        limits.extend(quota.jobs.iter().map(|job| (*job, limit.clone())));
    }
    limits
}

impl EngineState {
    /// Jobs with leases and jobs of the plan that sample a graph, if they must be loaded: either for the first time or because the
    /// cache decision has changed.
    pub(super) fn unloaded(&self) -> BTreeSet<JobId> {
        let is_loaded = |id: &JobId| {
            let is_current = |job: &Arc<JobContext>| Some(job.compiled.cache) == self.wanted_cache(*id);
            self.failed.contains_key(id) || self.jobs.get(id).is_some_and(is_current)
        };
        let leased = self.leases.jobs().map(|(id, _)| id);
        leased.chain(self.graph_jobs.iter().copied()).filter(|id| !is_loaded(id)).collect()
    }

    /// Replaces the allocations of all jobs. They also apply to running groups.
    fn set_allocations(&mut self, allocations: BTreeMap<JobId, JobAllocation>) {
        for (id, job) in &self.jobs {
            if self.allocations.get(id) != allocations.get(id) {
                job.limits.apply(allocations.get(id));
            }
        }
        self.allocations = allocations;
    }

    /// Replaces the mix changes of all jobs.
    fn set_mixes(&mut self, mixes: &[JobMixChanges]) {
        for JobMixChanges { job, changes } in mixes {
            if let Some(job) = self.jobs.get(job) {
                job.set_mix(changes);
            }
        }
        self.mixes = mixes.iter().map(|mix| (mix.job, mix.changes.clone())).collect();
    }

    /// Replaces the segments of all unbounded jobs.
    fn set_segments(&mut self, planned: &[JobSegments]) {
        for segments in planned {
            if let Some(job) = self.jobs.get(&segments.job) {
                job.set_segments(segments);
            }
        }
        self.segments = planned.iter().map(|segments| (segments.job, segments.clone())).collect();
    }

    /// Revokes and accepts leases. Returns whether the set of jobs with leases has changed.
    fn change_leases(&mut self, changes: &LeaseChanges) -> bool {
        let jobs_before: Vec<JobId> = self.leases.jobs().map(|(id, _)| id).collect();
        self.drop_cancelled_requests();
        for &(job, split) in &changes.revoked {
            self.leases.revoke(job, split);
        }
        for lease in &changes.granted {
            self.accept(lease);
        }
        let leases = &self.leases;
        self.rounds.retain(|round| {
            leases.job(round.job).is_some_and(|leases| leases.has_round(round.epoch, round.ordinal))
        });
        !leases.jobs().map(|(id, _)| id).eq(jobs_before)
    }
}
