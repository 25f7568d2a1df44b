//! Admission: selects the groups to compute next, within the memory budget and the limits of each job and stream.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::memory::MemoryAccount;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::allocation::GroupLoad;
use super::graph_job::too_large_batch;
use super::job::JobContext;
use super::leases::{JobLeases, StreamShare};
use super::memory_budget::MemoryReservation;
use super::pool::Priority;
use super::state::{EngineState, MemoryWait};
use super::task::TaskContext;

/// Number of low-order bits of a priority. They leave room between two groups, for groups that overtake others of their
/// stream.
const OVERTAKING_BITS: u32 = 20;

/// A group that was selected to run.
pub(super) struct AdmittedGroup {
    pub(super) job: Arc<JobContext>,
    pub(super) split: SplitRef,
    pub(super) offsets: Range<u32>,
    pub(super) generation: u64,
    pub(super) context: TaskContext,
    pub(super) cancel: CancellationToken,
    /// Reserves the memory of the group's encoded rows.
    pub(super) encoded_reservation: MemoryReservation,
    /// Reserves the memory of the output buffer until the buffer is allocated.
    pub(super) buffer_reservation: MemoryReservation,
    pub(super) exceeds_budget: bool,
    /// Whether the rows are reported as failed, without being computed.
    pub(super) is_given_up: bool,
}

/// A group that may start.
#[derive(Debug, Clone)]
struct Candidate {
    job: JobId,
    split: SplitRef,
    offsets: Range<u32>,
    /// Number of rows, without padding.
    rows: u32,
    /// Memory that the group needs while it runs.
    bytes: u64,
    exceeds_budget: bool,
}

/// Whether a group of a job may start.
enum Admission {
    Candidate(Candidate),
    /// The group needs more memory than this worker has.
    TooLarge {
        split: SplitRef,
        offset: u32,
        message: String,
    },
    /// The job's limits or the memory budget do not allow another group.
    Blocked {
        is_memory_short: bool,
    },
}

/// The number of a job's splits whose groups have all started, and the number of its running groups, so that jobs
/// alternate. Smaller values are more urgent.
type Urgency = (usize, usize);

impl EngineState {
    /// Adds the time that a job has waited for memory to the job's counter.
    fn record_memory_wait(&mut self) {
        let Some(wait) = self.memory_wait.take() else { return };
        if let Some(job) = self.jobs.get(&wait.job) {
            let waited_ns = wait.since.elapsed().as_nanos() as u64;
            job.counters.memory_wait_ns.fetch_add(waited_ns, Ordering::Relaxed);
        }
    }

    /// Returns the number of running groups that count against a job's limit: the job's own groups if its allocation
    /// limits reads, otherwise the groups of all jobs without a read limit. A job with many reads therefore does not
    /// prevent other jobs from starting groups.
    pub(super) fn counted_groups(&self, job: JobId) -> usize {
        let has_read_limit = |id: &JobId| self.jobs.get(id).is_some_and(|job| job.limits.has_read_limit());
        let counts_alone = has_read_limit(&job);
        let counts = |id: &JobId| if counts_alone { *id == job } else { !has_read_limit(id) };
        self.leases.jobs().filter(|(id, _)| counts(id)).map(|(_, leases)| leases.running_groups()).sum()
    }

    /// Returns the priority of a group that starts now: after all groups that have started, but before groups of later
    /// splits of its own stream. Such groups may have started already if the lease of this split moved here from
    /// another worker, but the consumer needs this split first. A group never overtakes other streams, because a slow
    /// stream would then delay the other streams permanently.
    fn priority(&self, split: SplitRef, id: JobId) -> Priority {
        let first_later = self.leases.job(id).and_then(|leases| leases.first_later_priority(split));
        let last = self.started << OVERTAKING_BITS;
        first_later.map_or(last, |first| last.min(first.saturating_sub(1)))
    }

    fn urgency(&self, id: JobId) -> Option<Urgency> {
        self.leases.job(id).map(|leases| (leases.started_splits(), leases.running_groups()))
    }
}

impl Engine {
    /// Starts the most urgent groups that fit the memory budget. One group at a time may exceed the budget, if a
    /// consumer is waiting for rows that no running group computes. Consumers therefore never wait for memory that
    /// other consumers hold.
    pub(super) fn admit(&self, state: &mut EngineState) -> Vec<AdmittedGroup> {
        std::iter::from_fn(|| self.admit_next(state)).collect()
    }

    fn admit_next(&self, state: &mut EngineState) -> Option<AdmittedGroup> {
        if !state.leases.jobs().any(|(_, leases)| leases.is_ready()) {
            state.record_memory_wait();
            return None;
        }
        let in_use = self.bytes_in_use(state);
        state.record_memory_wait();
        let mut chosen: Option<(Urgency, Candidate)> = None;
        let mut short: Option<JobId> = None;
        let ids: Vec<JobId> = state.leases.jobs().map(|(id, _)| id).collect();
        for id in ids {
            match self.next_possible_group(state, id, in_use) {
                Some(Admission::Candidate(candidate)) => {
                    let Some(urgency) = state.urgency(id) else { continue };
                    if chosen.as_ref().is_none_or(|(first, _)| urgency < *first) {
                        chosen = Some((urgency, candidate));
                    }
                }
                Some(Admission::Blocked { is_memory_short: true }) if short.is_none() => short = Some(id),
                _ => {}
            }
        }
        let Some((_, candidate)) = chosen else {
            state.memory_wait = short.map(|job| MemoryWait { job, since: Instant::now() });
            return None;
        };
        self.start_group(state, candidate, in_use)
    }

    /// Returns the bytes of the budget in use, not counting idle buffers. If the next group does not fit, evicts blocks that only
    /// the next pass needs and cached rows that no job uses, and then requests the memory of graphs that no job uses.
    fn bytes_in_use(&self, state: &mut EngineState) -> u64 {
        let in_use = || self.used_bytes_without_idle();
        let working = state.leases.jobs().filter_map(|(id, _)| state.jobs.get(&id));
        let next = working.map(|job| job.group_bytes(job.group_rows(self.memory_bytes()))).max().unwrap_or(0);
        let used = in_use();
        if used + next <= self.memory_bytes() {
            return used;
        }
        let missing = (used + next).saturating_sub(self.memory_bytes());
        let used = if self.resources.reading.blocks.free_used_up(missing) { in_use() } else { used };
        if used + next <= self.memory_bytes() {
            return used;
        }
        let used = if self.resources.caches.free_inactive() { in_use() } else { used };
        if used + next > self.memory_bytes() {
            state.remove_idle_graph_jobs(true);
            self.release_unused_graphs();
        }
        used
    }

    /// Returns the most urgent group of a job. First fails the splits whose next group is too large for this worker.
    fn next_possible_group(&self, state: &mut EngineState, id: JobId, in_use: u64) -> Option<Admission> {
        loop {
            match self.next_group(state, id, in_use) {
                Some(Admission::TooLarge { split, offset, message }) => {
                    state.leases.update(id, split, |lease| lease.fail(offset, message));
                }
                next => return next,
            }
        }
    }

    /// Returns the most urgent group of a job. `None` if the job is not loaded, or has no group to start.
    fn next_group(&self, state: &mut EngineState, id: JobId, in_use: u64) -> Option<Admission> {
        let job = Arc::clone(state.jobs.get(&id)?);
        let share = self.memory_bytes() / state.leases.streams();
        let load = GroupLoad {
            groups: state.counted_groups(id),
            threads: self.threads,
            groups_per_full_group: job.pace.groups_per_full_group(),
        };
        let (has_idle_thread, may_exceed) = (state.groups < self.threads, !state.has_exceeding_group);
        let rows = job.group_rows(self.memory_bytes());
        let leases = state.leases.job_mut(id)?;
        leases.set_share(StreamShare { bytes: share, group_bytes: job.group_bytes(rows) });
        let starving = leases.first_starving().filter(|_| may_exceed);
        let mut is_memory_short = false;
        let mut fitting = None;
        while let Some(first) = leases.first_startable() {
            let split = first.split();
            let candidate = match self.candidate(&job, leases, split, rows)? {
                Admission::Candidate(candidate) => candidate,
                too_large => return Some(too_large),
            };
            let has_room = in_use + candidate.bytes <= self.memory_bytes();
            is_memory_short |= !has_room && has_idle_thread && leases.has_waiting_consumer();
            if !has_room || !job.limits.admits(candidate.bytes, || leases.held_bytes(), load) {
                break;
            }
            // With many streams, one group may be larger than a share. A stream may nevertheless hold one group.
            let held = leases.stream_bytes(split.stream);
            if held == 0 || held + stream_bytes(&job, candidate.bytes) <= share {
                fitting = Some((first, candidate));
                break;
            }
            leases.park(split.stream);
        }
        match (fitting, starving) {
            (Some((first, _)), Some(starving)) if starving < first => {
                self.exceeding_candidate(&job, leases, starving.split(), rows)
            }
            (Some((_, fitting)), _) => Some(Admission::Candidate(fitting)),
            (None, Some(starving)) => self.exceeding_candidate(&job, leases, starving.split(), rows),
            (None, None) => leases.is_ready().then_some(Admission::Blocked { is_memory_short }),
        }
    }

    /// Returns the next group of a split, or an error if the group is larger than this worker's memory.
    fn candidate(
        &self,
        job: &JobContext,
        leases: &JobLeases,
        split: SplitRef,
        group_rows: u32,
    ) -> Option<Admission> {
        let offsets = leases.get(split)?.lock().next_group(job.layout().split_len(split), group_rows)?;
        let (offsets, rows) = job.with_padding(split, offsets);
        let bytes = job.group_bytes(rows);
        if bytes > self.memory_bytes() {
            let message = self.too_large_message(job, rows, bytes);
            return Some(Admission::TooLarge { split, offset: offsets.start, message });
        }
        Some(Admission::Candidate(Candidate {
            job: job.id(),
            split,
            offsets,
            rows,
            bytes,
            exceeds_budget: false,
        }))
    }

    fn exceeding_candidate(
        &self,
        job: &JobContext,
        leases: &JobLeases,
        split: SplitRef,
        group_rows: u32,
    ) -> Option<Admission> {
        Some(match self.candidate(job, leases, split, group_rows)? {
            Admission::Candidate(candidate) => {
                Admission::Candidate(Candidate { exceeds_budget: true, ..candidate })
            }
            other => other,
        })
    }

    fn start_group(
        &self,
        state: &mut EngineState,
        candidate: Candidate,
        in_use: u64,
    ) -> Option<AdmittedGroup> {
        let Candidate { job: id, split, offsets, rows, bytes, exceeds_budget } = candidate;
        let job = Arc::clone(state.jobs.get(&id)?);
        let slab_bytes = job.slab_bytes(rows as usize);
        let slabs = &self.resources.slabs;
        let used = in_use + slabs.idle_bytes();
        let others = used.saturating_sub(slabs.allocated_bytes());
        slabs.make_room(slab_bytes, self.memory_bytes().saturating_sub(others));
        state.groups += 1;
        state.has_exceeding_group |= exceeds_budget;
        let budget = &self.resources.budget;
        let buffer_reservation = budget.reserve(MemoryAccount::ReservedBatches, slab_bytes as u64);
        let encoded_bytes = bytes.saturating_sub(slab_bytes as u64);
        let encoded_reservation = budget.reserve(MemoryAccount::EncodedRows, encoded_bytes);
        state.started += 1;
        let priority = state.priority(split, id);
        state.leases.update(id, split, |lease| AdmittedGroup {
            generation: lease.start(&offsets, bytes, priority),
            context: TaskContext { priority, progress: lease.progress.clone() },
            cancel: lease.cancel.clone(),
            is_given_up: lease.is_given_up(&offsets),
            offsets,
            job,
            split,
            encoded_reservation,
            buffer_reservation,
            exceeds_budget,
        })
    }

    /// Returns the error message for a group that needs more memory than this worker has.
    fn too_large_message(&self, job: &JobContext, rows: u32, bytes: u64) -> String {
        let (needed_mib, memory_mib) = (bytes.div_ceil(1 << 20), self.memory_bytes() >> 20);
        let details = &job.compiled.details;
        if details.layout.coordinated {
            let operator = details.pipeline.operators.last().map_or("the pipeline", |last| last.kind.name());
            return format!(
                "a round of {rows} rows needs {needed_mib} MiB, but this worker has only {memory_mib} MiB; set a smaller window for {operator}, or raise the workers' --memory"
            );
        }
        if details.layout.indivisible {
            return too_large_batch(rows as usize, &format!("{needed_mib} MiB"), self.memory_bytes());
        }
        format!(
            "a group of {rows} rows in batches of {} needs {needed_mib} MiB, but this worker has only {memory_mib} MiB; set a smaller batch.size, or raise the workers' --memory",
            details.layout.batch_rows
        )
    }
}

/// Returns the part of a group's bytes that counts against its stream. A round is divided among all streams.
fn stream_bytes(job: &JobContext, bytes: u64) -> u64 {
    let layout = job.layout();
    if layout.coordinated { bytes / u64::from(layout.streams) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::super::leases::tests::layout;
    use super::super::split::SplitState;
    use super::*;

    fn split(epoch: u32, ordinal: u64, stream: u32) -> SplitRef {
        SplitRef { epoch, ordinal, stream }
    }

    #[test]
    fn a_new_job_and_an_old_one_alternate() {
        let mut state = EngineState::default();
        for (job, epoch) in [(1, 50), (2, 0)] {
            for ordinal in 0..3 {
                state.leases.insert(
                    JobId(job),
                    split(epoch, ordinal, 0),
                    SplitState::new(0, 1),
                    Some(&layout(false)),
                );
            }
        }
        let mut order = Vec::new();
        for ordinal in [0, 0, 1, 1, 2, 2] {
            let job =
                [JobId(1), JobId(2)].into_iter().min_by_key(|job| state.urgency(*job)).expect("two jobs");
            let split = split(if job == JobId(1) { 50 } else { 0 }, ordinal, 0);
            state.leases.update(job, split, |lease| lease.start(&(0..10), 100, 1));
            order.push(job.0);
        }
        assert_eq!(order, [1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn a_late_split_overtakes_the_later_splits_of_its_stream_only() {
        let mut state = EngineState::default();
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
        assert!(first < second, "the consumer needs the first split before the second");
        assert!(other < third && third < fourth, "a split does not overtake another job");
        let lagging = start_at(split(0, 0, 1), 1);
        assert!(lagging > fourth, "a late split does not overtake another stream");
    }
}
