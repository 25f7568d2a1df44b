//! Which work of the CPU pool is next: of jobs that have a share, that which has had least of it; of one job's work, the
//! nearest to a consumer. Knows no clock: it is told what time it is, and how long work took.
//!
//! Start-time fair queueing (Goyal, Vin, Chen, 1996): each line has a virtual time that grows by what its work takes,
//! divided by its share; the line that is behind goes first; a line that was empty does not catch up. What work will
//! take is reckoned by what its line's work took before, and put right once it is done. Jobs without a share stand in
//! one line together, in the order of their groups.
//!
//! A job may have a limit besides: so many threads on average, not always whole. Its line then has a time before which nothing of
//! it begins, which work of a second moves on by a second over the limit: the generic cell rate algorithm (ITU-T I.371). Time that
//! it had nothing to do is not saved up beyond a moment. Of such a job no more is under way at a time than its limit, rounded up:
//! what its first pieces take is known when they are done, and all of them at once would be paid for long after. When a limit
//! changes, so does the wait that the old one left, which is short then.

use std::collections::{BTreeMap, BinaryHeap};

use feedline_data::ids::JobId;

use super::Priority;

/// Who stands in a line: a job with a share, or all those without.
pub(super) type QueueKey = Option<JobId>;

/// How much the latest work counts for what the next will take.
const NEWEST: f64 = 0.2;
/// Seconds of its limit that a job may have saved up while it had nothing to do.
const SAVED: f64 = 0.1;
/// Seconds that a job waits at most for what it used before its limit changed.
const LONGEST_DEBT: f64 = 1.0;

/// Work that waits. Bounded by the groups in flight, which admission bounds in bytes.
#[derive(Debug)]
pub(super) struct WorkQueue<T> {
    lines: BTreeMap<QueueKey, Waiting<T>>,
    shares: BTreeMap<JobId, f64>,
    /// Threads that jobs may use on average.
    limits: BTreeMap<JobId, f64>,
    /// Pieces of work under way, of lines with any. Beside the lines, which may go and come meanwhile.
    under_way: BTreeMap<QueueKey, u32>,
    /// The share of those that have none.
    all: f64,
    /// Virtual time of the line that was served last, as it began.
    now: f64,
    order: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    work: BinaryHeap<Entry<T>>,
    share: f64,
    virtual_seconds: f64,
    /// What its work takes, lately.
    usual_seconds: f64,
    /// Threads that it may use on average; infinite without a limit.
    limit: f64,
    /// When its next work may begin.
    not_before: f64,
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum NextWork<T> {
    /// This; whoever takes it says when it is done.
    Work(RunningWork, T),
    /// Nothing before this time: what waits has used its limit.
    At(f64),
    /// Nothing.
    Nothing,
}

#[derive(Debug)]
struct Entry<T> {
    priority: Priority,
    order: u64,
    job: JobId,
    work: T,
}

/// Work that was taken from a line, until it is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningWork {
    line: QueueKey,
    reckoned_seconds: f64,
    /// The line's limit as the work began.
    limit: f64,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The heap gives the greatest first; the most urgent work is the smallest.
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
    /// Of a pool of so many threads.
    pub(super) fn new(threads: u32) -> Self {
        Self {
            lines: BTreeMap::new(),
            shares: BTreeMap::new(),
            limits: BTreeMap::new(),
            under_way: BTreeMap::new(),
            all: f64::from(threads.max(1)),
            now: 0.0,
            order: 0,
        }
    }

    pub(super) fn push(&mut self, job: JobId, priority: Priority, work: T) {
        self.order += 1;
        let entry = Entry { priority, order: self.order, job, work };
        self.enter(entry);
    }

    fn enter(&mut self, entry: Entry<T>) {
        let (share, limit) = (self.shares.get(&entry.job), self.limits.get(&entry.job));
        let line = share.or(limit).map(|_| entry.job);
        let (share, limit) = (share.copied().unwrap_or(self.all), limit.copied().unwrap_or(f64::INFINITY));
        let now = self.now;
        let waiting = self.lines.entry(line).or_insert_with(|| Waiting {
            work: BinaryHeap::new(),
            share,
            virtual_seconds: now,
            usual_seconds: 0.0,
            limit,
            not_before: 0.0,
        });
        if waiting.work.is_empty() {
            waiting.virtual_seconds = waiting.virtual_seconds.max(now);
        }
        (waiting.share, waiting.limit) = (share, limit);
        waiting.work.push(entry);
    }

    /// When the first work that waits may begin, not before `at`; `None` where none waits but such as other work of its job has to
    /// be done before, whose thread looks again.
    pub(super) fn begins(&self, at: f64) -> Option<f64> {
        let open = self.lines.iter().filter(|(line, waiting)| {
            !waiting.work.is_empty() && !is_full(&self.under_way, line, waiting.limit)
        });
        open.map(|(_, waiting)| waiting.not_before.max(at)).min_by(f64::total_cmp)
    }

    /// What there is to do at a time, in seconds since any fixed start.
    pub(super) fn pop(&mut self, at: f64) -> NextWork<T> {
        let mut soonest = f64::INFINITY;
        let mut first: Option<(QueueKey, &mut Waiting<T>)> = None;
        let under_way = &self.under_way;
        for (line, waiting) in self.lines.iter_mut().filter(|(_, waiting)| !waiting.work.is_empty()) {
            if is_full(under_way, line, waiting.limit) {
                // Whoever is done with a piece of it looks again.
            } else if waiting.not_before > at {
                soonest = soonest.min(waiting.not_before);
            } else if first.as_ref().is_none_or(|(_, first)| waiting.virtual_seconds < first.virtual_seconds)
            {
                first = Some((*line, waiting));
            }
        }
        let Some((line, waiting, entry)) =
            first.and_then(|(line, waiting)| waiting.work.pop().map(|entry| (line, waiting, entry)))
        else {
            return if soonest.is_finite() { NextWork::At(soonest) } else { NextWork::Nothing };
        };
        self.now = self.now.max(waiting.virtual_seconds);
        let served = RunningWork { line, reckoned_seconds: waiting.usual_seconds, limit: waiting.limit };
        *self.under_way.entry(line).or_default() += 1;
        waiting.virtual_seconds += waiting.usual_seconds / waiting.share;
        waiting.not_before = waiting.not_before.max(at - SAVED) + waiting.usual_seconds / waiting.limit;
        NextWork::Work(served, entry.work)
    }

    /// Work took this long.
    pub(super) fn done(&mut self, served: RunningWork, seconds: f64) {
        if let Some(count) = self.under_way.get_mut(&served.line) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&served.line);
            }
        }
        // A line may have gone with its job's share.
        if let Some(line) = self.lines.get_mut(&served.line) {
            line.virtual_seconds += (seconds - served.reckoned_seconds) / line.share;
            // Work that began under a limit that was wider is not held to the present one, nor the other way round.
            line.not_before += (seconds - served.reckoned_seconds) / line.limit.max(served.limit);
            line.usual_seconds += (seconds - line.usual_seconds) * NEWEST;
        }
    }

    /// Gives jobs their shares and their limits from a time on, those that are not named none. Work that waits stands in the
    /// new lines at once.
    pub(super) fn set_shares(&mut self, at: f64, shares: BTreeMap<JobId, f64>, limits: BTreeMap<JobId, f64>) {
        if (&self.shares, &self.limits) == (&shares, &limits) {
            return;
        }
        (self.shares, self.limits) = (shares, limits);
        let mut entries: Vec<Entry<T>> = Vec::new();
        for line in self.lines.values_mut() {
            entries.extend(line.work.drain());
        }
        let (shares, limits) = (&self.shares, &self.limits);
        let stays = |job: &JobId| shares.contains_key(job) || limits.contains_key(job);
        self.lines.retain(|line, _| line.as_ref().is_none_or(stays));
        for (line, waiting) in &mut self.lines {
            let limit = line.and_then(|job| limits.get(&job).copied());
            waiting.set_limit(at, limit.unwrap_or(f64::INFINITY));
        }
        entries.into_iter().for_each(|entry| self.enter(entry));
    }
}

/// Whether no more work of a line may be under way.
fn is_full(under_way: &BTreeMap<QueueKey, u32>, line: &QueueKey, limit: f64) -> bool {
    limit.is_finite() && under_way.get(line).is_some_and(|count| f64::from(*count) >= limit.ceil())
}

impl<T> Waiting<T> {
    /// What the line owes of its old limit is owed at the new one.
    fn set_limit(&mut self, at: f64, limit: f64) {
        let debt = self.not_before - at;
        if limit != self.limit && debt > 0.0 {
            // Without a limit nothing was owed.
            let owed = if self.limit.is_finite() { debt * self.limit / limit } else { 0.0 };
            self.not_before = at + owed.min(LONGEST_DEBT);
        }
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests;
