//! The tracked state of one worker: its last report, its leases and its tasks.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::graph::description::GraphHash;
use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::memory::MemoryUsage;
use feedline_data::messages::{
    GraphLoadState, GraphReport, ProcessCpu, StoreReport, TierCapacity, WorkerAddress, WorkerAllocations,
};

use super::candidates::CandidateLoad;
use super::long_poll::LongPoll;

/// Number of rows leased ahead for each core. The number is small and does not depend on the measured rate, because changed
/// mix weights take effect only after all leased rows.
const LEASED_ROWS_PER_CORE: u64 = 16;
/// Number of indivisible batches leased ahead for each core. One thread computes a batch, which takes much longer than a row.
const LEASED_BATCHES_PER_CORE: u64 = 2;
/// Maximum number of leases ahead of one job on one worker.
const MAX_LEASES_AHEAD: u32 = 4_096;

/// Counts of a worker's leases of one job.
#[derive(Debug, Clone, Copy, Default)]
struct JobLeases {
    held: u32,
    computed: u32,
}

#[derive(Debug)]
pub(crate) struct TrackedWorker {
    pub(crate) address: WorkerAddress,
    pub(crate) last_seen: Millis,
    /// Whether the worker has reported in this incarnation of the state machine.
    pub(crate) has_reported: bool,
    pub(crate) memory_full: bool,
    pub(crate) draining: bool,
    /// The pool of the worker; empty without a pool.
    pub(crate) pool: String,
    pub(crate) machine: String,
    pub(crate) nic_bytes_per_s: u64,
    /// The number of threads in the CPU pool.
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) caches: Vec<TierCapacity>,
    /// The bytes of the memory budget that each account uses.
    pub(crate) memory: Vec<MemoryUsage>,
    /// The requests to each object store.
    pub(crate) stores: Vec<StoreReport>,
    /// The graphs of the worker; `None` if the worker loads graphs only after it has received leases.
    pub(crate) graphs: Option<GraphReport>,
    /// Jobs of the plan that sample a graph.
    pub(crate) graph_jobs: BTreeSet<JobId>,
    /// Nanoseconds from the start of the worker to its last report.
    pub(crate) elapsed_ns: u64,
    /// CPU time of the worker until its last report.
    pub(crate) cpu: ProcessCpu,
    /// The allocations of the plan.
    pub(crate) allocations: WorkerAllocations,
    /// Leased splits, and whether each is computed.
    leases: BTreeMap<(JobId, SplitRef), bool>,
    leases_by_job: BTreeMap<JobId, JobLeases>,
    /// Leases that the worker may not have received. If the worker is lost, these splits are not at fault.
    unseen: BTreeSet<(JobId, SplitRef)>,
    /// Tasks that the worker may not have received.
    unseen_tasks: BTreeSet<TaskId>,
    /// Jobs that sample a graph and that the worker may not have received.
    unseen_graph_jobs: BTreeSet<JobId>,
    pub(crate) tasks: BTreeSet<TaskId>,
    /// Jobs whose delivered offsets the worker commits to consumer groups.
    pub(crate) commits: BTreeSet<JobId>,
    /// The number of changes of the worker's plan.
    pub(crate) revision: u64,
    pub(crate) parked: Option<LongPoll>,
    /// Ended jobs that the worker has worked on, each with the first plan revision without the job.
    pub(crate) unsettled_jobs: BTreeSet<(u64, JobId)>,
    /// Uncomputed splits that a consumer could not fetch from the worker, each with the first plan revision without the
    /// split. A worker that has seen this revision is alive.
    pub(crate) unreachable: BTreeSet<(u64, JobId, SplitRef)>,
    /// Uncomputed splits that were moved to other workers, each with the first plan revision without the split. If the worker is
    /// lost before it has seen this revision, the loss counts for them.
    pub(crate) moved: BTreeSet<(u64, JobId, SplitRef)>,
    /// Splits that a consumer could not fetch, and that the worker may not have received, since its last report.
    pub(crate) unreceived: BTreeSet<(JobId, SplitRef)>,
    /// Whether the worker runs a suspect split or task alone.
    pub(crate) is_isolated: bool,
    /// Running jobs with this worker as a lease candidate.
    pub(crate) candidate_of: BTreeSet<JobId>,
    /// The worker's key in the queue of workers that can run more tasks; `None` if the worker is not queued.
    pub(crate) queued_tasks: Option<usize>,
}

impl TrackedWorker {
    /// Creates a worker that has not reported. `revision` is its first plan revision.
    pub(crate) fn new(now: Millis, revision: u64) -> Self {
        Self {
            address: WorkerAddress::default(),
            last_seen: now,
            has_reported: false,
            memory_full: false,
            draining: false,
            cores: 0,
            memory_bytes: 0,
            pool: String::new(),
            machine: String::new(),
            nic_bytes_per_s: 0,
            caches: Vec::new(),
            memory: Vec::new(),
            stores: Vec::new(),
            graphs: None,
            graph_jobs: BTreeSet::new(),
            elapsed_ns: 0,
            cpu: ProcessCpu::default(),
            allocations: WorkerAllocations::default(),
            leases: BTreeMap::new(),
            leases_by_job: BTreeMap::new(),
            unseen: BTreeSet::new(),
            unseen_tasks: BTreeSet::new(),
            unseen_graph_jobs: BTreeSet::new(),
            tasks: BTreeSet::new(),
            commits: BTreeSet::new(),
            revision,
            parked: None,
            unsettled_jobs: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            moved: BTreeSet::new(),
            unreceived: BTreeSet::new(),
            is_isolated: false,
            candidate_of: BTreeSet::new(),
            queued_tasks: None,
        }
    }

    /// Whether the worker accepts new leases and tasks.
    pub(crate) fn accepts_work(&self) -> bool {
        self.has_reported && !self.draining && !self.is_isolated
    }

    /// Whether an expiry of the worker counts as a loss. A draining worker has announced that it leaves.
    pub(crate) fn is_lost_on_expiry(&self) -> bool {
        self.has_reported && !self.draining
    }

    /// Records that the coordinator has sent the current plan. If a consumer could not reach the worker, the worker may be
    /// lost already.
    pub(crate) fn on_plan_sent(&mut self) {
        if self.unreachable.is_empty() {
            self.mark_seen();
        }
    }

    /// Records that the worker has reported the revision of its plan.
    pub(crate) fn on_plan_seen(&mut self, seen: u64) {
        if seen == self.revision {
            self.mark_seen();
        }
    }

    fn mark_seen(&mut self) {
        self.unseen.clear();
        self.unseen_tasks.clear();
        self.unseen_graph_jobs.clear();
    }

    /// Adds a task to the plan.
    pub(crate) fn add_task(&mut self, task: TaskId) {
        self.tasks.insert(task);
        self.unseen_tasks.insert(task);
        self.revision += 1;
    }

    /// The tasks for which the loss of the worker would count.
    pub(crate) fn tasks_in_progress(&self) -> BTreeSet<TaskId> {
        match self.is_lost_on_expiry() {
            true => self.tasks.difference(&self.unseen_tasks).copied().collect(),
            false => BTreeSet::new(),
        }
    }

    /// Whether the loss of the worker would count for a leased split.
    pub(crate) fn may_compute(&self, job: JobId, split: SplitRef) -> bool {
        self.is_lost_on_expiry()
            && self.leases.get(&(job, split)) == Some(&false)
            && !self.unseen.contains(&(job, split))
    }

    /// Replaces the reported graphs. Returns the jobs whose loads have another state.
    pub(crate) fn set_graphs(&mut self, graphs: Option<GraphReport>) -> BTreeSet<JobId> {
        if self.graphs == graphs {
            return BTreeSet::new();
        }
        let states = |graphs: &Option<GraphReport>| -> BTreeSet<(JobId, GraphLoadState)> {
            graphs.iter().flat_map(|graphs| &graphs.jobs).map(|load| (load.job, load.state)).collect()
        };
        let before = std::mem::replace(&mut self.graphs, graphs);
        let (before, after) = (states(&before), states(&self.graphs));
        before.symmetric_difference(&after).map(|(job, _)| *job).collect()
    }

    /// How far the worker has loaded a job that samples a graph, if it reports this.
    pub(crate) fn graph_state(&self, job: JobId) -> Option<GraphLoadState> {
        self.graphs.as_ref()?.state_of(job)
    }

    /// Whether the worker can compute splits of a job that samples a graph.
    pub(crate) fn has_loaded(&self, job: JobId) -> bool {
        self.graphs.as_ref().is_none_or(|graphs| graphs.state_of(job) == Some(GraphLoadState::Loaded))
    }

    pub(crate) fn holds_graph(&self, topology: GraphHash) -> bool {
        self.graphs.as_ref().is_some_and(|graphs| graphs.holds(topology))
    }

    /// Adds a job that samples a graph to the plan.
    pub(crate) fn add_graph_job(&mut self, job: JobId) {
        if self.graph_jobs.insert(job) {
            self.unseen_graph_jobs.insert(job);
            self.revision += 1;
        }
    }

    /// Removes a job that samples a graph from the plan.
    pub(crate) fn remove_graph_job(&mut self, job: JobId) {
        self.unseen_graph_jobs.remove(&job);
        self.revision += u64::from(self.graph_jobs.remove(&job));
    }

    /// The jobs for which the loss of the worker would count, because it loads their graphs.
    pub(crate) fn loads_in_progress(&self) -> BTreeSet<JobId> {
        let loads = |job: &&JobId| {
            let state = self.graph_state(**job);
            !self.unseen_graph_jobs.contains(*job)
                && state.is_none_or(|state| state == GraphLoadState::Loading)
        };
        match self.is_lost_on_expiry() && self.graphs.is_some() {
            true => self.graph_jobs.iter().filter(loads).copied().collect(),
            false => BTreeSet::new(),
        }
    }

    /// The leased splits, ordered by job.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (JobId, SplitRef)> + '_ {
        self.leases.keys().copied()
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.leases_by_job.keys().copied()
    }

    pub(crate) fn is_computed(&self, job: JobId, split: SplitRef) -> bool {
        self.leases.get(&(job, split)).copied().unwrap_or_default()
    }

    /// The number of leased splits of a job that the worker has not computed.
    pub(crate) fn uncomputed(&self, job: JobId) -> u32 {
        self.leases_by_job.get(&job).map_or(0, |leases| leases.held - leases.computed)
    }

    /// Returns the worker's load as a candidate for splits of a job.
    pub(crate) fn load(&self, job: JobId, least_ahead: u32, split: SplitParts) -> CandidateLoad {
        CandidateLoad {
            uncomputed: self.uncomputed(job),
            held: self.leases.len(),
            ahead: split.leases_for_cores(least_ahead, self.cores),
            memory_full: self.memory_full,
        }
    }

    /// The leases of splits that the worker has not computed.
    pub(crate) fn uncomputed_leases(&self) -> impl Iterator<Item = (JobId, SplitRef)> + '_ {
        self.leases.iter().filter(|(_, is_computed)| !**is_computed).map(|(lease, _)| *lease)
    }

    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    pub(crate) fn add_lease(&mut self, job: JobId, split: SplitRef) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.leases.entry((job, split)) {
            entry.insert(false);
            self.unseen.insert((job, split));
            self.leases_by_job.entry(job).or_default().held += 1;
        }
    }

    /// Removes the lease of a split. Returns whether the worker held the split.
    pub(crate) fn remove_lease(&mut self, job: JobId, split: SplitRef) -> bool {
        let Some(is_computed) = self.leases.remove(&(job, split)) else { return false };
        self.unseen.remove(&(job, split));
        if let Some(leases) = self.leases_by_job.get_mut(&job) {
            leases.held -= 1;
            leases.computed -= u32::from(is_computed);
            if leases.held == 0 {
                self.leases_by_job.remove(&job);
            }
        }
        true
    }

    /// Removes all leases of a job.
    pub(crate) fn remove_job(&mut self, job: JobId) {
        self.leases_by_job.remove(&job);
        let first = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        let last = SplitRef { epoch: u32::MAX, ordinal: u64::MAX, stream: u32::MAX };
        let own: Vec<_> = self.leases.range((job, first)..=(job, last)).map(|(lease, _)| *lease).collect();
        for lease in own {
            self.leases.remove(&lease);
            self.unseen.remove(&lease);
        }
        self.candidate_of.remove(&job);
    }

    /// Replaces the set of computed splits. Returns the newly computed splits.
    pub(crate) fn set_computed(&mut self, reported: &[(JobId, SplitRef)]) -> Vec<(JobId, SplitRef)> {
        let mut newly = Vec::new();
        let mut held: BTreeSet<&(JobId, SplitRef)> = BTreeSet::new();
        for lease in reported {
            let Some(is_computed) = self.leases.get_mut(lease) else { continue };
            held.insert(lease);
            if !std::mem::replace(is_computed, true) {
                newly.push(*lease);
                self.leases_by_job.entry(lease.0).or_default().computed += 1;
            }
        }
        let computed: usize = self.leases_by_job.values().map(|leases| leases.computed as usize).sum();
        if computed > held.len() {
            for (lease, is_computed) in &mut self.leases {
                if *is_computed && !held.contains(lease) {
                    *is_computed = false;
                    self.leases_by_job.entry(lease.0).or_default().computed -= 1;
                }
            }
        }
        newly
    }
}

/// The parts of a split that threads compute independently of each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitParts {
    parts: u64,
    /// The number of parts that are leased ahead for each core.
    per_core: u64,
}

impl SplitParts {
    pub(crate) fn of(layout: &Layout) -> Self {
        let per_core = if layout.indivisible { LEASED_BATCHES_PER_CORE } else { LEASED_ROWS_PER_CORE };
        Self { parts: layout.split_parts().max(1), per_core }
    }

    /// Returns the number of leases that keep all cores of a worker busy, at least `min_leases`.
    fn leases_for_cores(self, min_leases: u32, cores: u32) -> u32 {
        let parts = u64::from(cores) * self.per_core;
        min_leases.max(parts.div_ceil(self.parts).min(u64::from(MAX_LEASES_AHEAD)) as u32)
    }
}

/// Workers that can run more tasks, ordered by their numbers of running tasks, then by id.
pub(crate) type TaskRoom = BTreeSet<(usize, WorkerId)>;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_core_has_rows_or_batches_from_the_start() {
        let rows = |parts| SplitParts { parts, per_core: LEASED_ROWS_PER_CORE };
        assert_eq!(rows(1024).leases_for_cores(3, 64), 3);
        assert_eq!(rows(7).leases_for_cores(3, 64), 147);
        assert_eq!(rows(7).leases_for_cores(3, 1), 3);
        assert_eq!(rows(1).leases_for_cores(3, 1 << 20), MAX_LEASES_AHEAD);
        let batches = |parts| SplitParts { parts, per_core: LEASED_BATCHES_PER_CORE };
        assert_eq!(batches(2).leases_for_cores(3, 64), 64, "a thread computes a batch of 1,024 seeds");
        assert_eq!(batches(256).leases_for_cores(3, 64), 3);
    }

    proptest! {
        #[test]
        fn counts_equal_a_scan_of_all_leases(
            steps in proptest::collection::vec((0u8..5, 0u64..3, 0u64..5, any::<u16>()), 0..100),
        ) {
            let mut worker = TrackedWorker::new(0, 1);
            let mut all: BTreeMap<(JobId, SplitRef), bool> = BTreeMap::new();
            let lease = |job, ordinal| (JobId(job), SplitRef { epoch: 0, ordinal, stream: 0 });
            for (kind, job, ordinal, bits) in steps {
                let (job, split) = lease(job, ordinal);
                match kind {
                    0 | 1 => {
                        worker.add_lease(job, split);
                        all.entry((job, split)).or_default();
                    }
                    2 => prop_assert_eq!(worker.remove_lease(job, split), all.remove(&(job, split)).is_some()),
                    3 => {
                        let reported: Vec<_> =
                            (0..15).filter(|bit| bits >> bit & 1 == 1).map(|bit| lease(bit / 5, bit % 5)).collect();
                        let newly = worker.set_computed(&reported);
                        let expected: Vec<_> =
                            reported.iter().copied().filter(|lease| all.get(lease) == Some(&false)).collect();
                        prop_assert_eq!(newly, expected);
                        all.iter_mut().for_each(|(lease, is_computed)| *is_computed = reported.contains(lease));
                    }
                    _ => {
                        worker.remove_job(job);
                        all.retain(|(of, _), _| *of != job);
                    }
                }
                prop_assert_eq!(&worker.leases, &all);
                prop_assert_eq!(worker.lease_count(), all.len());
                prop_assert_eq!(worker.leases().count(), all.len());
                let jobs: BTreeSet<JobId> = all.keys().map(|(job, _)| *job).collect();
                prop_assert_eq!(worker.jobs().collect::<BTreeSet<_>>(), jobs);
                for job in 0..3 {
                    let uncomputed = all.iter().filter(|((of, _), is_computed)| of.0 == job && !**is_computed).count();
                    prop_assert_eq!(worker.uncomputed(JobId(job)) as usize, uncomputed);
                }
                prop_assert_eq!(worker.is_computed(job, split), all.get(&(job, split)) == Some(&true));
            }
        }
    }
}
