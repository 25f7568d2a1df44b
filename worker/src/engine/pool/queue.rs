//! The queue of the CPU pool: selects the job that has used the least of its share, and the most urgent work of that
//! job. The queue has no clock. The caller passes the current time and the duration of finished work.
//!
//! Jobs share the threads by start-time fair queueing (Goyal, Vin, Chen, 1996). Each queue has a virtual time, which
//! increases by the duration of its work divided by its share. The queue with the smallest virtual time is served next.
//! A queue that was empty does not catch up on unused time. The duration of new work is estimated from earlier work,
//! and corrected when the work has finished. All jobs without a share use the same queue, ordered by the start times of
//! their groups.
//!
//! A job may also have a limit on its average number of threads, which need not be an integer. The generic cell rate
//! algorithm (ITU-T I.371) enforces the limit: each queue has an earliest start time, which advances by the duration of
//! its work divided by the limit. At most a tenth of a second of unused time is saved. The number of running tasks of
//! such a job is at most the limit, rounded up, because their durations are unknown until they finish. When a limit
//! changes, the remaining wait is scaled, and limited to one second.

use std::collections::{BTreeMap, BinaryHeap};

use feedline_data::ids::JobId;

/// The priority of work: smaller values run first. Each new group gets a larger value than earlier groups. Gaps between
/// the values leave room for groups that overtake others.
pub(crate) type Priority = u64;

/// Identifies the queue of a job with a share or a limit. `None` is the queue of all other jobs.
pub(super) type QueueKey = Option<JobId>;

/// Weight of the newest duration in the moving average.
const NEWEST_WEIGHT: f64 = 0.2;
/// Maximum seconds of unused time that an idle job can save.
const SAVED_SECONDS_MAX: f64 = 0.1;
/// Maximum remaining wait in seconds after a limit has changed.
const DEBT_SECONDS_MAX: f64 = 1.0;

/// Waiting work of all jobs. The queue is bounded because admission limits the memory of running groups.
#[derive(Debug)]
pub(super) struct WorkQueue<T> {
    jobs: BTreeMap<QueueKey, JobQueue<T>>,
    shares: BTreeMap<JobId, f64>,
    /// Maximum average number of threads of each limited job.
    limits: BTreeMap<JobId, f64>,
    /// Number of running tasks of each queue with running tasks. A queue may be removed and created again while its
    /// tasks run.
    running: BTreeMap<QueueKey, u32>,
    /// The combined share of all jobs that have no share of their own.
    default_share: f64,
    /// Virtual time of the most recently served queue at the time when its work started.
    virtual_now: f64,
    order: u64,
}

/// Waiting work of one job, or of all jobs that have neither a share nor a limit.
#[derive(Debug)]
struct JobQueue<T> {
    work: BinaryHeap<Entry<T>>,
    share: f64,
    virtual_seconds: f64,
    /// Moving average of the duration of the queue's work.
    mean_seconds: f64,
    /// Maximum average number of threads. Infinite if the job has no limit.
    limit: f64,
    /// Earliest start time of the next work.
    not_before: f64,
}

/// The next work for a thread.
#[derive(Debug)]
pub(super) enum NextWork<T> {
    /// Work to run. The caller reports its duration to [`WorkQueue::finish`].
    Work(RunningWork, T),
    /// Limits delay all waiting work until this time.
    At(f64),
    /// No work is waiting, or all waiting work belongs to jobs at their limit.
    Nothing,
}

#[derive(Debug)]
struct Entry<T> {
    priority: Priority,
    order: u64,
    job: JobId,
    work: T,
}

/// Work that a thread is running.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningWork {
    queue: QueueKey,
    estimated_seconds: f64,
    /// The limit of the queue when the work started.
    limit: f64,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The heap returns the largest entry first, so the order is reversed: the most urgent work has the smallest
        // priority value.
        (other.priority, other.order).cmp(&(self.priority, self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<T> Eq for Entry<T> {}

impl<T> WorkQueue<T> {
    /// Creates the queue of a pool with this many threads.
    pub(super) fn new(threads: u32) -> Self {
        Self {
            jobs: BTreeMap::new(),
            shares: BTreeMap::new(),
            limits: BTreeMap::new(),
            running: BTreeMap::new(),
            default_share: f64::from(threads.max(1)),
            virtual_now: 0.0,
            order: 0,
        }
    }

    pub(super) fn push(&mut self, job: JobId, priority: Priority, work: T) {
        self.order += 1;
        let entry = Entry { priority, order: self.order, job, work };
        self.insert(entry);
    }

    fn insert(&mut self, entry: Entry<T>) {
        let (share, limit) = (self.shares.get(&entry.job), self.limits.get(&entry.job));
        let key = share.or(limit).map(|_| entry.job);
        let (share, limit) =
            (share.copied().unwrap_or(self.default_share), limit.copied().unwrap_or(f64::INFINITY));
        let now = self.virtual_now;
        let queue = self.jobs.entry(key).or_insert_with(|| JobQueue {
            work: BinaryHeap::new(),
            share,
            virtual_seconds: now,
            mean_seconds: 0.0,
            limit,
            not_before: 0.0,
        });
        if queue.work.is_empty() {
            queue.virtual_seconds = queue.virtual_seconds.max(now);
        }
        (queue.share, queue.limit) = (share, limit);
        queue.work.push(entry);
    }

    /// Returns the earliest time, not before `at`, at which waiting work may start. `None` if no work is waiting, or if
    /// all waiting work belongs to jobs at their limit: the threads of these jobs check the queue when they finish
    /// their work.
    pub(super) fn next_start(&self, at: f64) -> Option<f64> {
        let open = self
            .jobs
            .iter()
            .filter(|(key, queue)| !queue.work.is_empty() && !is_full(&self.running, key, queue.limit));
        open.map(|(_, queue)| queue.not_before.max(at)).min_by(f64::total_cmp)
    }

    /// Removes and returns the next work. `at` is the current time in seconds since an arbitrary point in time.
    pub(super) fn pop(&mut self, at: f64) -> NextWork<T> {
        let mut soonest = f64::INFINITY;
        let mut first: Option<(QueueKey, &mut JobQueue<T>)> = None;
        for (key, queue) in self.jobs.iter_mut().filter(|(_, queue)| !queue.work.is_empty()) {
            // When a task of a job at its limit finishes, its thread checks the queue again.
            if is_full(&self.running, key, queue.limit) {
                continue;
            }
            if queue.not_before > at {
                soonest = soonest.min(queue.not_before);
            } else if first.as_ref().is_none_or(|(_, first)| queue.virtual_seconds < first.virtual_seconds) {
                first = Some((*key, queue));
            }
        }
        let Some((key, queue, entry)) =
            first.and_then(|(key, queue)| queue.work.pop().map(|entry| (key, queue, entry)))
        else {
            return if soonest.is_finite() { NextWork::At(soonest) } else { NextWork::Nothing };
        };
        self.virtual_now = self.virtual_now.max(queue.virtual_seconds);
        let running = RunningWork { queue: key, estimated_seconds: queue.mean_seconds, limit: queue.limit };
        *self.running.entry(key).or_default() += 1;
        queue.virtual_seconds += queue.mean_seconds / queue.share;
        queue.not_before = queue.not_before.max(at - SAVED_SECONDS_MAX) + queue.mean_seconds / queue.limit;
        NextWork::Work(running, entry.work)
    }

    /// Records the duration of finished work.
    pub(super) fn finish(&mut self, finished: RunningWork, seconds: f64) {
        if let Some(count) = self.running.get_mut(&finished.queue) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&finished.queue);
            }
        }
        // The queue may have been removed because its job has lost its share.
        if let Some(queue) = self.jobs.get_mut(&finished.queue) {
            let excess = seconds - finished.estimated_seconds;
            queue.virtual_seconds += excess / queue.share;
            // The larger of the limits at the start and at the end of the work applies.
            queue.not_before += excess / queue.limit.max(finished.limit);
            queue.mean_seconds += (seconds - queue.mean_seconds) * NEWEST_WEIGHT;
        }
    }

    /// Replaces the shares and limits of all jobs at time `at`. Waiting work moves to the new queues immediately.
    pub(super) fn set_shares(&mut self, at: f64, shares: BTreeMap<JobId, f64>, limits: BTreeMap<JobId, f64>) {
        if (&self.shares, &self.limits) == (&shares, &limits) {
            return;
        }
        (self.shares, self.limits) = (shares, limits);
        let mut entries: Vec<Entry<T>> = Vec::new();
        for queue in self.jobs.values_mut() {
            entries.extend(queue.work.drain());
        }
        let (shares, limits) = (&self.shares, &self.limits);
        let is_listed = |job: &JobId| shares.contains_key(job) || limits.contains_key(job);
        self.jobs.retain(|key, _| key.as_ref().is_none_or(is_listed));
        for (key, queue) in &mut self.jobs {
            let limit = key.and_then(|job| limits.get(&job).copied());
            queue.set_limit(at, limit.unwrap_or(f64::INFINITY));
        }
        entries.into_iter().for_each(|entry| self.insert(entry));
    }
}

/// Whether a queue already has as many running tasks as its limit allows.
fn is_full(running: &BTreeMap<QueueKey, u32>, key: &QueueKey, limit: f64) -> bool {
    limit.is_finite() && running.get(key).is_some_and(|count| f64::from(*count) >= limit.ceil())
}

impl<T> JobQueue<T> {
    /// Sets a new limit, and scales the remaining wait.
    fn set_limit(&mut self, at: f64, limit: f64) {
        let debt = self.not_before - at;
        if limit != self.limit && debt > 0.0 {
            // A queue without a limit owes no time.
            let owed = if self.limit.is_finite() { debt * self.limit / limit } else { 0.0 };
            self.not_before = at + owed.min(DEBT_SECONDS_MAX);
        }
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests;
