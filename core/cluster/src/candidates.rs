//! Which worker has a split of a job first: parts of workers, as the plan gives them to a job, and what each has to do.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};

/// A job that the plan does not place yet may have splits on so many times its even part of the workers. So few jobs
/// are on all of them, and each worker has but few of many jobs.
const SPREAD: usize = 4;

/// A worker that may have splits of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseCandidate {
    pub(super) worker: WorkerId,
    /// Cores that the plan gives the job there; of each worker the same where there is no plan.
    pub(super) cores: f64,
}

/// Workers by when they would have computed one more split of a job, then by how much they hold.
#[derive(Debug, Default)]
pub(super) struct CandidateQueue {
    /// Splits of a job that a worker has not computed, at most.
    leases_ahead: u32,
    /// The time in which the largest part computes twice as many splits. A stream takes its splits in order, so a part
    /// that would take longer for one holds it up more than it helps.
    latest: u64,
    of: BTreeMap<WorkerId, Candidate>,
    all: BTreeSet<Place>,
    /// Those with room for splits that can wait.
    with_room: BTreeSet<Place>,
}

/// What each worker has of the job.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    place: Place,
    cores: f64,
    /// Splits that it has to compute.
    load: u32,
    /// Splits that keep it busy.
    ahead: u32,
    memory_full: bool,
}

/// When a worker would have computed one more, in no unit, and what it holds in all.
type Place = (u64, usize, WorkerId);

/// Time in which so many splits are computed.
fn time(splits: u32, cores: f64) -> u64 {
    (1e6 * f64::from(splits) / cores) as u64
}

impl CandidateQueue {
    pub(super) fn new(parts: &[LeaseCandidate], leases_ahead: u32) -> Self {
        let largest = parts.iter().map(|part| part.cores).fold(f64::MIN_POSITIVE, f64::max);
        Self { leases_ahead, latest: time(2 * leases_ahead, largest), ..Self::default() }
    }

    /// Splits that a part may have at a time.
    pub(super) fn slots(&self, part: &LeaseCandidate) -> u32 {
        (1..=self.leases_ahead).take_while(|splits| time(*splits, part.cores) <= self.latest).count() as u32
    }

    /// Adds a worker. `ahead` leases keep it busy.
    pub(super) fn put(
        &mut self,
        part: LeaseCandidate,
        load: u32,
        ahead: u32,
        held: usize,
        memory_full: bool,
    ) {
        let most = if ahead > self.leases_ahead { ahead } else { self.slots(&part) };
        let place = (time(load + 1, part.cores), held, part.worker);
        self.of.insert(part.worker, Candidate { place, cores: part.cores, load, ahead, memory_full });
        self.all.insert(place);
        if load < most && !memory_full {
            self.with_room.insert(place);
        }
    }

    /// Whether a split that can wait would be granted.
    pub(super) fn has_room(&self) -> bool {
        !self.with_room.is_empty()
    }

    /// The worker that has it first, of those that are not to be avoided, and of all.
    pub(super) fn choose(
        &self,
        is_urgent: bool,
        avoid: impl Fn(WorkerId) -> bool,
    ) -> (Option<WorkerId>, Option<WorkerId>) {
        let candidates = if is_urgent { &self.all } else { &self.with_room };
        let best = candidates.iter().map(|(.., id)| *id).find(|id| !avoid(*id));
        (best, candidates.first().map(|(.., id)| *id))
    }

    pub(super) fn add(&mut self, worker: WorkerId) {
        let Some(Candidate { place, cores, load, ahead, memory_full }) = self.of.get(&worker).copied() else {
            return;
        };
        self.all.remove(&place);
        self.with_room.remove(&place);
        self.put(LeaseCandidate { worker, cores }, load + 1, ahead, place.1, memory_full);
    }
}

/// Workers for one of so many jobs that the plan does not place: neighbouring jobs have neighbouring ones.
pub(super) fn spread(live: &[WorkerId], job: JobId, jobs: usize) -> Vec<LeaseCandidate> {
    let count = (SPREAD * live.len()).div_ceil(jobs.max(1)).min(live.len());
    let start = (job.0 as usize).wrapping_mul(count) % live.len().max(1);
    let chosen = live.iter().cycle().skip(start).take(count);
    let mut parts: Vec<LeaseCandidate> =
        chosen.map(|worker| LeaseCandidate { worker: *worker, cores: 1.0 }).collect();
    parts.sort_unstable_by_key(|part| part.worker);
    parts
}
