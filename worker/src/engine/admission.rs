//! Admission: which group is computed next, within the memory budget and each job's and stream's share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio_util::sync::CancellationToken;

use super::group::{MemoryReservation, TaskContext};
use super::job::JobContext;
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

impl State {
    /// Streams of jobs that hold leases: each may use an equal share of the memory.
    fn streams(&self) -> u64 {
        let streams: BTreeSet<(JobId, u32)> =
            self.splits.keys().map(|(split, job)| (*job, split.stream)).collect();
        (streams.len() as u64).max(1)
    }

    /// Whether the round of this split is on its way for another stream, so that it comes for this one as well.
    fn has_running_round(&self, split: SplitRef, job: JobId) -> bool {
        let first = SplitRef { stream: 0, ..split };
        let last = SplitRef { stream: u32::MAX, ..split };
        let round = self.splits.range((first, JobId(0))..=(last, job));
        let mut others = round.filter(|((other, id), _)| *id == job && *other != split);
        others.any(|(_, lease)| lease.running_groups() > 0)
    }

    fn stream_bytes(&self, job: JobId, stream: u32) -> u64 {
        let of = |key: &(SplitRef, JobId)| key.1 == job && key.0.stream == stream;
        self.splits.iter().filter(|(key, _)| of(key)).map(|(_, split)| split.held_bytes()).sum()
    }

    /// Bytes of a job's groups that run or wait for consumers.
    fn job_bytes(&self, job: JobId) -> u64 {
        self.splits.iter().filter(|(key, _)| key.1 == job).map(|(_, split)| split.held_bytes()).sum()
    }

    /// Counts the time in which a job has waited for memory.
    fn note_memory_wait(&mut self) {
        let Some((id, since)) = self.waits_for_memory.take() else { return };
        if let Some(job) = self.jobs.get(&id) {
            job.memory_wait_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Whether a consumer of the job waits for rows that are not there.
    fn has_waiting_consumer(&self, job: JobId) -> bool {
        self.splits.iter().any(|((_, id), lease)| *id == job && lease.is_awaited())
    }

    /// Groups in flight that count for a job's limit: its own where it was told how much to read at a time, else those of
    /// all jobs that were not, so that one that may read much keeps no other from beginning.
    fn groups_beside(&self, job: JobId) -> usize {
        let has_reads = |id: &JobId| self.jobs.get(id).is_some_and(|job| job.limits.has_reads());
        let own = has_reads(&job);
        let counts = |id: &JobId| if own { *id == job } else { !has_reads(id) };
        self.splits.iter().filter(|((_, id), _)| counts(id)).map(|(_, lease)| lease.running_groups()).sum()
    }

    /// The priority of a group that starts now: behind those that have started before it, but before those of its stream that
    /// lie behind it. They started before it where its split has come late, from another worker, and is the next that a
    /// consumer waits for. No stream overtakes another: one that lags would keep the others from ever going on.
    fn priority(&self, split: SplitRef, id: JobId) -> Priority {
        let behind = self
            .splits
            .iter()
            .filter(|((other, job), _)| *job == id && other.stream == split.stream && *other > split);
        let first_behind = behind.filter_map(|(_, lease)| lease.priority()).min();
        let last = self.started << OVERTAKING_BITS;
        first_behind.map_or(last, |first| last.min(first.saturating_sub(1)))
    }

    /// Leases in the order in which they are worked on: each job's own by their place in its sequence, and jobs in
    /// turn, whatever place they have reached.
    fn by_urgency(&self) -> Vec<(SplitRef, JobId)> {
        let mut running: BTreeMap<JobId, usize> = BTreeMap::new();
        for ((_, job), lease) in &self.splits {
            *running.entry(*job).or_default() += lease.running_groups();
        }
        let mut ranks: BTreeMap<JobId, usize> = BTreeMap::new();
        let ranked = self.splits.keys().map(|&(split, job)| {
            let rank = ranks.entry(job).or_default();
            *rank += 1;
            (*rank, running[&job], job, split)
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, job, split)| (split, job)).collect()
    }
}

impl Engine {
    /// The most urgent group that fits the budget. For a split whose consumer waits and has nothing, one group at a
    /// time may exceed it, so that no consumer waits for memory that others hold.
    pub(super) fn choose(&self, state: &mut State) -> Option<AdmittedGroup> {
        let share = self.memory_bytes / state.streams();
        let mut used = self.used_bytes(state);
        let idle = self.tools.slabs.idle_bytes();
        let working = state.splits.keys().filter_map(|(_, job)| state.jobs.get(job));
        let next = working.map(|job| job.group_bytes(job.group_rows(self.memory_bytes))).max().unwrap_or(0);
        // Rows that a job has left behind are worth less than the next group.
        if used.saturating_sub(idle) + next > self.memory_bytes && self.tools.caches.free_inactive() {
            used = self.used_bytes(state);
        }
        state.note_memory_wait();
        let mut found = None;
        let mut short = None;
        let mut too_large = None;
        for (split, id) in state.by_urgency() {
            let (Some(job), Some(lease)) = (state.jobs.get(&id), state.splits.get(&(split, id))) else {
                continue;
            };
            let layout = &job.details.layout;
            let Some(offsets) = lease.next_group(layout.split_len(split), job.group_rows(self.memory_bytes))
            else {
                continue;
            };
            if layout.coordinated && state.has_running_round(split, id) {
                continue;
            }
            let rows = offsets.end - offsets.start;
            let bytes = job.group_bytes(rows);
            // A round is for all streams.
            let own_bytes = if layout.coordinated { bytes / u64::from(layout.streams) } else { bytes };
            if bytes > self.memory_bytes {
                too_large = Some(((split, id), offsets.start, self.too_large(job, rows, bytes)));
                break;
            }
            // An idle buffer of the pool that fits is used again, or freed to make room.
            let has_room = used.saturating_sub(idle) + bytes <= self.memory_bytes;
            let fits = has_room
                && state.stream_bytes(id, split.stream) + own_bytes <= share
                && job.limits.admits(
                    bytes,
                    || state.job_bytes(id),
                    state.groups_beside(id),
                    (self.threads, job.pace.shrunk()),
                );
            // Threads that are all at work would not get to it either.
            if !has_room && short.is_none() && state.groups < self.threads && state.has_waiting_consumer(id) {
                short = Some(id);
            }
            if fits || (lease.is_starving() && !state.exceeds) {
                found = Some(((split, id), Arc::clone(job), offsets, bytes, !fits));
                break;
            }
        }
        if let Some((key, offset, message)) = too_large {
            state.splits.get_mut(&key).expect("found above").fail(offset, message);
            self.changed.notify_waiters();
            return self.choose(state);
        }
        if found.is_none() {
            state.waits_for_memory = short.map(|id| (id, Instant::now()));
        }
        let ((split, id), job, offsets, bytes, exceeds) = found?;
        let slab_bytes = job.slab_bytes((offsets.end - offsets.start) as usize);
        let others = used.saturating_sub(self.tools.slabs.allocated_bytes());
        self.tools.slabs.make_room(slab_bytes, self.memory_bytes.saturating_sub(others));
        state.groups += 1;
        let source_bytes = bytes.saturating_sub(slab_bytes as u64);
        state.reading_bytes += source_bytes;
        state.exceeds |= exceeds;
        let planned = MemoryReservation::new(slab_bytes as u64, &self.tools.planned_bytes);
        state.started += 1;
        let priority = state.priority(split, id);
        let lease = state.splits.get_mut(&(split, id)).expect("found above");
        let generation = lease.start(&offsets, bytes, priority);
        let course = TaskContext { priority, steps: lease.steps.clone() };
        let cancel = lease.cancel.clone();
        Some(AdmittedGroup {
            job,
            split,
            offsets,
            generation,
            course,
            cancel,
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

#[cfg(test)]
mod tests {
    use super::super::split::SplitState;
    use super::*;

    #[test]
    fn a_new_job_and_an_old_one_take_turns() {
        let mut state = State::default();
        let split = |epoch, ordinal| SplitRef { epoch, ordinal, stream: 0 };
        for (job, epoch) in [(1, 50), (2, 0)] {
            for ordinal in 0..3 {
                state.splits.insert((split(epoch, ordinal), JobId(job)), SplitState::new(0, 1));
            }
        }
        // The old job has a group in flight already.
        state.splits.get_mut(&(split(50, 0), JobId(1))).expect("above").start(&(0..10), 100, 1);
        let order: Vec<(u64, u64)> =
            state.by_urgency().into_iter().map(|(split, job)| (job.0, split.ordinal)).collect();
        assert_eq!(order, [(2, 0), (1, 0), (2, 1), (1, 1), (2, 2), (1, 2)]);
    }
    #[test]
    fn a_split_that_comes_late_overtakes_what_its_job_has_begun_behind_it() {
        let mut state = State::default();
        let split = |ordinal| SplitRef { epoch: 0, ordinal, stream: 0 };
        let mut start_at = |split, job| {
            state.splits.insert((split, JobId(job)), SplitState::new(0, 1));
            state.started += 1;
            let priority = state.priority(split, JobId(job));
            let lease = state.splits.get_mut(&(split, JobId(job))).expect("it was put there");
            lease.start(&(0..10), 1, priority);
            priority
        };
        let mut start = |ordinal, job| start_at(split(ordinal), job);
        let [second, other, fourth] = [start(2, 1), start(0, 2), start(4, 1)];
        assert!(second < other && other < fourth, "as they are started");
        let (first, third) = (start(1, 1), start(3, 1));
        assert!(first < second, "it is wanted before");
        assert!(other < third && third < fourth, "and no more is overtaken than that");
        let lagging = start_at(SplitRef { stream: 1, ..split(0) }, 1);
        assert!(lagging > fourth, "another stream waits its turn, however far it is behind");
    }
}
