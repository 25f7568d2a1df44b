//! Admission: which group is computed next, within the memory budget and each job's and stream's share.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio_util::sync::CancellationToken;

use super::group::{MemoryReservation, TaskContext};
use super::job::JobContext;
use super::leases::JobLeases;
use super::pool::Priority;
use super::{Engine, State};

/// Room between the priorities of groups that are started one after another.
const OVERTAKING_BITS: u32 = 20;

/// A group that was chosen to run.
pub(super) struct AdmittedGroup {
    pub(super) job: Arc<JobContext>,
    pub(super) split: SplitRef,
    pub(super) offsets: Range<u32>,
    pub(super) generation: u64,
    pub(super) course: TaskContext,
    pub(super) cancel: CancellationToken,
    /// Encoded bytes that it may hold.
    pub(super) source_bytes: u64,
    pub(super) planned: MemoryReservation,
    pub(super) exceeds: bool,
}

/// A split whose next group may start.
#[derive(Debug, Clone)]
struct Candidate {
    job: JobId,
    split: SplitRef,
    offsets: Range<u32>,
    /// Bytes that the group takes while it is worked on.
    bytes: u64,
    exceeds: bool,
}

/// The next group of a job.
enum NextGroup {
    Candidate(Candidate),
    /// No worker of this size can compute the group.
    TooLarge(SplitRef, u32, String),
    /// The limits of the job or the memory leave no room; `is_short` where memory is short.
    Blocked {
        is_short: bool,
    },
}

/// The split's rank in its job, then the running groups of the job: jobs take turns. The smaller is the more urgent.
type Urgency = (usize, usize);

impl State {
    /// Adds the time for which a job has waited for memory to its counter.
    fn note_memory_wait(&mut self) {
        let Some((id, since)) = self.waits_for_memory.take() else { return };
        if let Some(job) = self.jobs.get(&id) {
            job.memory_wait_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Groups in flight that count for a job's limit: its own where its allocation limits its reads, else those of all jobs
    /// without such a limit, so that a job with many reads keeps no other from starting.
    fn groups_beside(&self, job: JobId) -> usize {
        let has_reads = |id: &JobId| self.jobs.get(id).is_some_and(|job| job.limits.has_reads());
        let own = has_reads(&job);
        let counts = |id: &JobId| if own { *id == job } else { !has_reads(id) };
        self.leases.jobs().filter(|(id, _)| counts(id)).map(|(_, leases)| leases.running_groups()).sum()
    }

    /// The priority of a group that starts now: behind all groups that started before it, but ahead of those of its stream
    /// that lie behind it in the order. Such groups have started before it where its split came late, from another worker,
    /// and is the next that a consumer waits for. No stream overtakes another: a slow one would hold up the others for good.
    fn priority(&self, split: SplitRef, id: JobId) -> Priority {
        let first_behind = self.leases.job(id).and_then(|leases| leases.first_behind(split));
        let last = self.started << OVERTAKING_BITS;
        first_behind.map_or(last, |first| last.min(first.saturating_sub(1)))
    }

    fn urgency(&self, id: JobId, split: SplitRef) -> Option<Urgency> {
        self.leases.job(id).map(|leases| (leases.rank(split), leases.running_groups()))
    }
}

impl Engine {
    /// Starts the most urgent groups that fit the budget. For a split whose consumer waits and has nothing, one group at a
    /// time may exceed it, so that no consumer waits for memory that others hold.
    pub(super) fn admit(&self, state: &mut State) -> Vec<AdmittedGroup> {
        let mut admitted = Vec::new();
        while let Some(group) = self.choose(state) {
            admitted.push(group);
        }
        admitted
    }

    fn choose(&self, state: &mut State) -> Option<AdmittedGroup> {
        if !state.leases.jobs().any(|(_, leases)| leases.is_ready()) {
            state.note_memory_wait();
            state.is_blocked = false;
            return None;
        }
        let in_use = self.bytes_in_use(state);
        state.note_memory_wait();
        let mut found: Option<(Urgency, Candidate)> = None;
        let mut short: Option<JobId> = None;
        let ids: Vec<JobId> = state.leases.jobs().map(|(id, _)| id).collect();
        for id in ids {
            let next = loop {
                match self.next_of(state, id, in_use) {
                    Some(NextGroup::TooLarge(split, offset, message)) => {
                        state.leases.update(id, split, |lease| lease.fail(offset, message));
                    }
                    next => break next,
                }
            };
            match next {
                Some(NextGroup::Candidate(candidate)) => {
                    let Some(urgency) = state.urgency(id, candidate.split) else { continue };
                    if found.as_ref().is_none_or(|(first, _)| urgency < *first) {
                        found = Some((urgency, candidate));
                    }
                }
                Some(NextGroup::Blocked { is_short: true }) if short.is_none() => short = Some(id),
                _ => {}
            }
        }
        state.is_blocked = found.is_none();
        let Some((_, candidate)) = found else {
            state.waits_for_memory = short.map(|id| (id, Instant::now()));
            return None;
        };
        self.start_group(state, candidate, in_use)
    }

    /// Bytes of the budget that are used, without idle buffers. Rows of caches that no job works with are dropped where the
    /// next group would not fit beside them.
    fn bytes_in_use(&self, state: &State) -> u64 {
        let in_use = || self.used_bytes(state).saturating_sub(self.tools.slabs.idle_bytes());
        let working = state.leases.jobs().filter_map(|(id, _)| state.jobs.get(&id));
        let next = working.map(|job| job.group_bytes(job.group_rows(self.memory_bytes))).max().unwrap_or(0);
        let used = in_use();
        if used + next > self.memory_bytes && self.tools.caches.free_inactive() { in_use() } else { used }
    }

    /// The most urgent group of a job; `None` where the job is not loaded or has none to start.
    fn next_of(&self, state: &mut State, id: JobId, in_use: u64) -> Option<NextGroup> {
        let job = Arc::clone(state.jobs.get(&id)?);
        let share = self.memory_bytes / state.leases.streams();
        let groups = state.groups_beside(id);
        let (is_alone, may_exceed) = (state.groups < self.threads, !state.exceeds);
        let rows = job.group_rows(self.memory_bytes);
        let leases = state.leases.job_mut(id)?;
        leases.set_share(share, job.group_bytes(rows));
        let starving = leases.first_starving().filter(|_| may_exceed);
        let mut is_short = false;
        let mut fitting = None;
        while let Some(split) = leases.first_open() {
            let candidate = candidate(&job, leases, split, rows)?;
            if candidate.bytes > self.memory_bytes {
                let count = candidate.offsets.end - candidate.offsets.start;
                let message = self.too_large(&job, count, candidate.bytes);
                return Some(NextGroup::TooLarge(split, candidate.offsets.start, message));
            }
            let has_room = in_use + candidate.bytes <= self.memory_bytes;
            is_short |= !has_room && is_alone && leases.has_waiting_consumer();
            let held = || leases.held_bytes();
            if !has_room
                || !job.limits.admits(candidate.bytes, held, groups, (self.threads, job.pace.shrunk()))
            {
                break;
            }
            if leases.stream_bytes(split.stream) + own_bytes(&job, candidate.bytes) <= share {
                fitting = Some(candidate);
                break;
            }
            leases.park(split.stream);
        }
        let first = match (fitting, starving) {
            (Some(fitting), Some(starving)) if starving < fitting.split => starving,
            (Some(fitting), _) => return Some(NextGroup::Candidate(fitting)),
            (None, Some(starving)) => starving,
            (None, None) => return leases.is_ready().then_some(NextGroup::Blocked { is_short }),
        };
        let candidate = candidate(&job, leases, first, rows)?;
        if candidate.bytes > self.memory_bytes {
            let message =
                self.too_large(&job, candidate.offsets.end - candidate.offsets.start, candidate.bytes);
            return Some(NextGroup::TooLarge(first, candidate.offsets.start, message));
        }
        Some(NextGroup::Candidate(Candidate { exceeds: true, ..candidate }))
    }

    fn start_group(&self, state: &mut State, candidate: Candidate, in_use: u64) -> Option<AdmittedGroup> {
        let Candidate { job: id, split, offsets, bytes, exceeds } = candidate;
        let job = Arc::clone(state.jobs.get(&id)?);
        let slab_bytes = job.slab_bytes((offsets.end - offsets.start) as usize);
        let used = in_use + self.tools.slabs.idle_bytes();
        let others = used.saturating_sub(self.tools.slabs.allocated_bytes());
        self.tools.slabs.make_room(slab_bytes, self.memory_bytes.saturating_sub(others));
        state.groups += 1;
        let source_bytes = bytes.saturating_sub(slab_bytes as u64);
        state.reading_bytes += source_bytes;
        state.exceeds |= exceeds;
        let planned = MemoryReservation::new(slab_bytes as u64, &self.tools.planned_bytes);
        state.started += 1;
        let priority = state.priority(split, id);
        state.leases.update(id, split, |lease| AdmittedGroup {
            generation: lease.start(&offsets, bytes, priority),
            course: TaskContext { priority, steps: lease.steps.clone() },
            cancel: lease.cancel.clone(),
            offsets,
            job,
            split,
            source_bytes,
            planned,
            exceeds,
        })
    }

    /// Why a group of so many bytes cannot be computed here.
    fn too_large(&self, job: &JobContext, rows: u32, bytes: u64) -> String {
        if job.details.layout.coordinated {
            return format!(
                "a round of {rows} rows takes {} MiB, and this worker has {} MiB; give {} a smaller window, or workers a larger --memory",
                bytes.div_ceil(1 << 20),
                self.memory_bytes >> 20,
                job.details.pipeline.operators.last().map_or("the pipeline", |last| last.kind.name())
            );
        }
        format!(
            "a group of {rows} rows in whole batches of {} takes {} MiB, and this worker has {} MiB; make batch.size smaller, or give workers a larger --memory",
            job.details.layout.batch_rows,
            bytes.div_ceil(1 << 20),
            self.memory_bytes >> 20
        )
    }
}

/// The next group of a split.
fn candidate(job: &JobContext, leases: &JobLeases, split: SplitRef, group_rows: u32) -> Option<Candidate> {
    let lease = leases.get(split)?;
    let offsets = lease.next_group(job.details.layout.split_len(split), group_rows)?;
    let bytes = job.group_bytes(offsets.end - offsets.start);
    Some(Candidate { job: job.details.job, split, offsets, bytes, exceeds: false })
}

/// The part of a group's bytes that counts for the stream: a round is for all streams.
fn own_bytes(job: &JobContext, bytes: u64) -> u64 {
    let layout = &job.details.layout;
    if layout.coordinated { bytes / u64::from(layout.streams) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::super::split::SplitState;
    use super::*;

    fn split(epoch: u32, ordinal: u64, stream: u32) -> SplitRef {
        SplitRef { epoch, ordinal, stream }
    }

    #[test]
    fn a_new_job_and_an_old_one_take_turns() {
        let mut state = State::default();
        for (job, epoch) in [(1, 50), (2, 0)] {
            for ordinal in 0..3 {
                state.leases.insert(JobId(job), split(epoch, ordinal, 0), SplitState::new(0, 1), None);
            }
        }
        // The old job has a group in flight already.
        state.leases.update(JobId(1), split(50, 0, 0), |lease| lease.start(&(0..10), 100, 1));
        let mut keys = state.leases.keys();
        keys.sort_by_key(|(job, split)| state.urgency(*job, *split));
        let order: Vec<(u64, u64)> = keys.into_iter().map(|(job, split)| (job.0, split.ordinal)).collect();
        assert_eq!(order, [(2, 0), (1, 0), (2, 1), (1, 1), (2, 2), (1, 2)]);
    }

    #[test]
    fn a_late_split_overtakes_the_later_splits_of_its_stream_only() {
        let mut state = State::default();
        let mut start_at = |split, job| {
            state.leases.insert(JobId(job), split, SplitState::new(0, 1), None);
            state.started += 1;
            let priority = state.priority(split, JobId(job));
            state.leases.update(JobId(job), split, |lease| lease.start(&(0..10), 1, priority));
            priority
        };
        let mut start = |ordinal, job| start_at(split(0, ordinal, 0), job);
        let [second, other, fourth] = [start(2, 1), start(0, 2), start(4, 1)];
        assert!(second < other && other < fourth, "groups run in the order of admission");
        let (first, third) = (start(1, 1), start(3, 1));
        assert!(first < second, "the consumer needs it before");
        assert!(other < third && third < fourth, "it overtakes no other job");
        let lagging = start_at(split(0, 0, 1), 1);
        assert!(lagging > fourth, "another stream waits for its turn, however late it is");
    }
}
