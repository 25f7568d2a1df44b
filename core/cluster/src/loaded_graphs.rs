//! Jobs that sample a graph. A graph takes minutes to load, and a split on a worker that loads it would stop a stream for this time.
//!
//! The workers that the plan assigns to such a job load it with its graph, and report its state. Only workers that have loaded the job
//! are lease candidates. Workers of a release that does not report loads receive leases immediately.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use feedline_data::graph::description::GraphHash;
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{GraphLoadState, PartitionedJob};

use crate::state::candidates::LeaseCandidate;
use crate::state::job::TrackedJob;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, Ready};

/// Number of workers that load the graph of an unplanned job, unless more hold it already. The plan follows within seconds, and may
/// assign the job to other workers.
const UNPLANNED_GRAPH_WORKERS: usize = 8;
/// Time after a change of the leader in which a job uses only the workers that hold its graph. The others may report first, and would
/// load it.
const KEPT_GRAPHS_MS: Millis = 5_000;

impl TrackedJob {
    /// The fingerprint of the graph that the job samples.
    pub(crate) fn graph(&self) -> Option<GraphHash> {
        let graph = self.dataset.as_ref()?.graph.as_ref()?;
        self.spec.pipeline.is_indivisible().then_some(graph.topology)
    }
}

impl Cluster {
    /// Assigns a job to workers, which load its graph. Returns the workers that may receive leases: those that have loaded the job. If
    /// no worker can load the job, these are all workers, so that a consumer receives the reason. Other jobs keep all workers.
    pub(crate) fn graph_candidates(
        &mut self,
        id: JobId,
        mut assigned: Vec<LeaseCandidate>,
    ) -> Vec<LeaseCandidate> {
        if self.jobs.get(&id).is_none_or(|job| job.graph().is_none()) {
            return assigned;
        }
        self.limit_loads(id, &mut assigned);
        let state = |worker: WorkerId| self.workers.get(&worker)?.graph_state(id);
        let has_failed = |candidate: &LeaseCandidate| state(candidate.worker) == Some(GraphLoadState::Failed);
        let is_loading =
            |candidate: &LeaseCandidate| !has_failed(candidate) && !self.has_graph_of(id, candidate.worker);
        let mut have_all_failed = assigned.iter().all(has_failed);
        if have_all_failed || assigned.iter().any(is_loading) {
            let kept = self.earlier_graph_workers(id, &assigned);
            have_all_failed &= kept.is_empty();
            assigned.extend(kept.into_iter().map(|worker| LeaseCandidate { worker, cores: 1.0 }));
            assigned.sort_unstable_by_key(|candidate| candidate.worker);
        }
        self.assign_graph(id, assigned.iter().map(|candidate| candidate.worker).collect());
        if have_all_failed {
            return assigned;
        }
        assigned.into_iter().filter(|candidate| self.has_graph_of(id, candidate.worker)).collect()
    }

    /// Returns the workers that have loaded a job, and that the plan has assigned to it until now. They compute its splits until the
    /// workers of the new plan have loaded it.
    fn earlier_graph_workers(&self, id: JobId, assigned: &[LeaseCandidate]) -> Vec<WorkerId> {
        let before = self.jobs.get(&id).into_iter().flat_map(|job| &job.graph_workers.assigned).copied();
        let is_new = |worker: WorkerId| assigned.iter().any(|candidate| candidate.worker == worker);
        let earlier = before.filter(|worker| !is_new(*worker) && self.accepts_work(*worker));
        earlier.filter(|worker| self.has_graph_of(id, *worker)).collect()
    }

    /// Returns the jobs of a worker that partition features, with their workers.
    pub(crate) fn partitioned_jobs(&self, worker: &TrackedWorker) -> Vec<PartitionedJob> {
        let jobs = worker.graph_jobs.iter().filter_map(|id| Some((*id, self.jobs.get(id)?)));
        let partitioned = jobs.filter(|(_, job)| job.spec.pipeline.partitions_features());
        partitioned
            .map(|(id, job)| {
                let assigned = job.graph_workers.assigned.iter();
                let workers = assigned.filter_map(|id| Some((*id, self.workers.get(id)?.address.clone())));
                PartitionedJob { job: id, workers: workers.collect(), ticket: String::new() }
            })
            .collect()
    }

    /// Replaces the workers that load a job.
    fn assign_graph(&mut self, id: JobId, workers: BTreeSet<WorkerId>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.graph_workers.has_changed = true;
        let is_partitioned = job.spec.pipeline.partitions_features();
        let before = std::mem::replace(&mut job.graph_workers.assigned, workers.clone());
        self.examined_items += (before.len() + workers.len()) as u64;
        for worker in before.difference(&workers) {
            if let Some(worker) = self.workers.get_mut(worker) {
                worker.remove_graph_job(id);
            }
        }
        // Workers that stay receive the new list of workers.
        let has_new_list = is_partitioned && before != workers;
        for worker in &workers {
            if let Some(worker) = self.workers.get_mut(worker) {
                worker.add_graph_job(id);
                worker.revision += u64::from(has_new_list);
            }
        }
    }

    /// Removes a job from the plans of the workers that load it, so that they may evict its graph.
    pub(crate) fn release_graph(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|job| !job.graph_workers.assigned.is_empty()) {
            self.assign_graph(id, BTreeSet::new());
            self.refresh_candidates_of(id);
        }
    }

    /// Returns why no worker computes a running job: all of its workers are still loading its graph.
    pub(crate) fn graph_wait(&self, job: &TrackedJob) -> Option<String> {
        job.running_layout()?;
        let workers = || job.graph_workers.assigned.iter().filter_map(|worker| self.workers.get(worker));
        let loads = |worker: &&TrackedWorker| worker.graph_state(job.id) != Some(GraphLoadState::Failed);
        if workers().any(|worker| worker.has_loaded(job.id)) {
            return None;
        }
        match workers().filter(loads).count() {
            0 => None,
            1 => Some("a worker is loading the graph of the job".to_owned()),
            count => Some(format!("{count} workers are loading the graph of the job")),
        }
    }

    /// The graphs that a worker holds, or loads for its jobs.
    pub(crate) fn graphs_of(&self, worker: &TrackedWorker) -> Vec<GraphHash> {
        let held = worker.graphs.iter().flat_map(|graphs| &graphs.held).map(|graph| graph.topology);
        let can_load = |job: &&JobId| worker.graph_state(**job) != Some(GraphLoadState::Failed);
        let jobs = worker.graph_jobs.iter().filter(can_load).filter_map(|job| self.jobs.get(job));
        let graphs: BTreeSet<GraphHash> = held.chain(jobs.filter_map(TrackedJob::graph)).collect();
        graphs.into_iter().collect()
    }

    /// Whether a worker may receive leases of a job: the job samples no graph, or the worker has loaded it.
    pub(crate) fn has_graph_of(&self, id: JobId, worker: WorkerId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.graph().is_none())
            || self.workers.get(&worker).is_some_and(|worker| worker.has_loaded(id))
    }

    /// Chooses new lease candidates of jobs whose load on a worker has changed. The worker need not be assigned to a job: it may
    /// receive a split for which a consumer waits, or have evicted the graph while it holds leases of an earlier plan.
    pub(crate) fn on_graph_states(&mut self, worker: WorkerId, jobs: BTreeSet<JobId>) {
        self.examined_items += jobs.len() as u64;
        for id in jobs {
            self.forget_lost_loads(id, worker);
            if self.jobs.get(&id).is_some_and(|job| job.running_layout().is_some() && job.graph().is_some()) {
                self.refresh_candidates_of(id);
            }
        }
    }

    /// Keeps the jobs of an earlier leader on the workers that hold their graphs, until the first plan or for a short time.
    pub(crate) fn keep_graphs(&mut self) {
        if self.jobs.values().any(|job| job.graph().is_some() && !job.workers.is_empty()) {
            self.graphs_kept_until = Some(self.now.saturating_add(KEPT_GRAPHS_MS));
        }
    }

    /// Returns the workers for an unplanned job that samples a graph: all workers that load it or hold the graph, and others up to a
    /// small number.
    pub(crate) fn unplanned_graph_workers(&self, id: JobId, graph: GraphHash) -> Vec<LeaseCandidate> {
        let live = &self.live_workers;
        let assigned = self.jobs.get(&id).map(|job| &job.graph_workers.assigned);
        let loads = |worker: &TrackedWorker| {
            worker.graph_state(id).is_some_and(|state| state != GraphLoadState::Failed)
        };
        let is_preferred = |worker: &WorkerId| {
            let found = self.workers.get(worker);
            found.is_some_and(|worker| worker.holds_graph(graph) || loads(worker))
                || assigned.is_some_and(|assigned| assigned.contains(worker))
        };
        let start = (id.0 as usize).wrapping_mul(UNPLANNED_GRAPH_WORKERS) % live.len().max(1);
        let mut workers: Vec<WorkerId> = live.iter().cycle().skip(start).take(live.len()).copied().collect();
        workers.sort_by_key(|worker| Reverse(is_preferred(worker)));
        let preferred = workers.iter().take_while(|worker| is_preferred(worker)).count();
        let keeps_workers = self.graphs_kept_until.is_some_and(|until| self.now < until)
            && self.jobs.get(&id).is_some_and(|job| !job.workers.is_empty());
        workers.truncate(if keeps_workers { preferred } else { preferred.max(UNPLANNED_GRAPH_WORKERS) });
        workers.sort_unstable();
        workers.into_iter().map(|worker| LeaseCandidate { worker, cores: 1.0 }).collect()
    }

    /// Revokes uncomputed splits of workers that have not loaded the job, if other workers have. Such a worker has received the leases
    /// from an earlier leader, or has evicted the graph.
    pub(crate) fn revoke_without_graph(&mut self, id: JobId, ready: &mut Ready) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !std::mem::take(&mut job.graph_workers.has_changed) {
            return;
        }
        let job = &self.jobs[&id];
        let Some(candidates) = job.candidates.as_ref().filter(|queue| queue.workers().next().is_some())
        else {
            return;
        };
        self.examined_items += job.leases.len() as u64;
        let mut waiting: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        for (split, lease) in job.leases.iter() {
            for holder in lease.holders().map(|holder| holder.worker) {
                let waits = self.workers.get(&holder).is_some_and(|worker| {
                    worker.has_reported && !worker.has_loaded(id) && !worker.is_computed(id, split)
                });
                if waits && !candidates.contains(holder) && !job.unreachable.has_split(split) {
                    waiting.entry(holder).or_default().push(split);
                }
            }
        }
        for (worker, splits) in waiting {
            self.revoke(id, worker, splits, ready);
        }
        self.update_candidates(id);
    }
}
