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
//! it had nothing to do is not saved up beyond a moment.

use std::collections::{BTreeMap, BinaryHeap};

use feedline_core::ids::JobId;

use super::Priority;

/// Who stands in a line: a job with a share, or all those without.
pub(super) type Line = Option<JobId>;

/// How much the latest work counts for what the next will take.
const NEWEST: f64 = 0.2;
/// Seconds of its limit that a job may have saved up while it had nothing to do.
const SAVED: f64 = 0.1;

/// Work that waits. Bounded by the groups in flight, which admission bounds in bytes.
#[derive(Debug)]
pub(super) struct Queue<T> {
    lines: BTreeMap<Line, Waiting<T>>,
    shares: BTreeMap<JobId, f64>,
    /// Threads that jobs may use on average.
    limits: BTreeMap<JobId, f64>,
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
pub(super) enum Next<T> {
    /// This; whoever takes it says when it is done.
    Work(Served, T),
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
pub(super) struct Served {
    line: Line,
    reckoned_seconds: f64,
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

impl<T> Queue<T> {
    /// Of a pool of so many threads.
    pub(super) fn new(threads: u32) -> Self {
        Self {
            lines: BTreeMap::new(),
            shares: BTreeMap::new(),
            limits: BTreeMap::new(),
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

    /// What there is to do at a time, in seconds since any fixed start.
    pub(super) fn pop(&mut self, at: f64) -> Next<T> {
        let mut soonest = f64::INFINITY;
        let mut first: Option<(Line, &mut Waiting<T>)> = None;
        for (line, waiting) in self.lines.iter_mut().filter(|(_, waiting)| !waiting.work.is_empty()) {
            if waiting.not_before > at {
                soonest = soonest.min(waiting.not_before);
            } else if first.as_ref().is_none_or(|(_, first)| waiting.virtual_seconds < first.virtual_seconds)
            {
                first = Some((*line, waiting));
            }
        }
        let Some((line, waiting, entry)) =
            first.and_then(|(line, waiting)| waiting.work.pop().map(|entry| (line, waiting, entry)))
        else {
            return if soonest.is_finite() { Next::At(soonest) } else { Next::Nothing };
        };
        self.now = self.now.max(waiting.virtual_seconds);
        let served = Served { line, reckoned_seconds: waiting.usual_seconds };
        waiting.virtual_seconds += waiting.usual_seconds / waiting.share;
        waiting.not_before = waiting.not_before.max(at - SAVED) + waiting.usual_seconds / waiting.limit;
        Next::Work(served, entry.work)
    }

    /// Work took this long.
    pub(super) fn done(&mut self, served: Served, seconds: f64) {
        // A line may have gone with its job's share.
        if let Some(line) = self.lines.get_mut(&served.line) {
            line.virtual_seconds += (seconds - served.reckoned_seconds) / line.share;
            line.not_before += (seconds - served.reckoned_seconds) / line.limit;
            line.usual_seconds += (seconds - line.usual_seconds) * NEWEST;
        }
    }

    /// Gives jobs their shares and their limits, those that are not named none. Work that waits stands in the new lines at
    /// once.
    pub(super) fn set_shares(&mut self, shares: BTreeMap<JobId, f64>, limits: BTreeMap<JobId, f64>) {
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
        entries.into_iter().for_each(|entry| self.enter(entry));
    }
}

#[cfg(test)]
mod tests {
    use feedline_core::random::mix64;

    use super::*;

    /// Serves one after the other, each job's work taking its own time; the time that each job got.
    fn serve(queue: &mut Queue<u64>, rounds: usize, seconds: impl Fn(u64) -> f64) -> BTreeMap<u64, f64> {
        let mut got = BTreeMap::new();
        for _ in 0..rounds {
            let Next::Work(served, job) = queue.pop(0.0) else { panic!("there is work") };
            let took = seconds(job);
            queue.done(served, took);
            *got.entry(job).or_default() += took;
            queue.push(JobId(job), 0, job);
        }
        got
    }

    fn fill(queue: &mut Queue<u64>, jobs: &[u64]) {
        for job in jobs {
            for _ in 0..4 {
                queue.push(JobId(*job), 0, *job);
            }
        }
    }

    #[test]
    fn jobs_get_time_in_proportion_to_their_shares_whatever_their_work_takes() {
        for seed in 0..100 {
            let dice = |number: u64| mix64(seed * 100 + number);
            let shares: BTreeMap<JobId, f64> =
                (1..=3).map(|job| (JobId(job), (dice(job) % 40 + 1) as f64 / 4.0)).collect();
            let mut queue = Queue::new(2);
            queue.set_shares(shares.clone(), BTreeMap::new());
            fill(&mut queue, &[1, 2, 3]);
            let got = serve(&mut queue, 20_000, |job| (dice(job + 10) % 20 + 1) as f64 / 1000.0);
            let all: f64 = got.values().sum();
            let shared: f64 = shares.values().sum();
            for (job, share) in &shares {
                let (is, wanted) = (got[&job.0] / all, share / shared);
                assert!((is - wanted).abs() < 0.01, "seed {seed}: {is} of the time, not {wanted}");
            }
        }
    }

    #[test]
    fn a_job_that_had_nothing_to_do_does_not_catch_up() {
        let mut queue = Queue::new(1);
        queue.set_shares([(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
        fill(&mut queue, &[1]);
        serve(&mut queue, 1000, |_| 1.0);
        fill(&mut queue, &[2]);
        let got = serve(&mut queue, 100, |_| 1.0);
        assert!((got[&1] - got[&2]).abs() <= 2.0, "{got:?}");
    }

    #[test]
    fn without_shares_the_most_urgent_of_all_jobs_is_first() {
        let mut queue = Queue::new(2);
        for (job, priority) in [(1, 3), (2, 1), (1, 2), (3, 4)] {
            queue.push(JobId(job), priority, priority);
        }
        queue.set_shares([(JobId(3), 100.0)].into(), BTreeMap::new());
        queue.set_shares(BTreeMap::new(), BTreeMap::new());
        let order: Vec<u64> = std::iter::from_fn(|| work(&mut queue, 0.0)).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn shares_change_while_work_waits_and_none_is_lost() {
        let mut queue = Queue::new(2);
        fill(&mut queue, &[1, 2]);
        queue.set_shares([(JobId(1), 3.0), (JobId(2), 1.0)].into(), BTreeMap::new());
        let got = serve(&mut queue, 4000, |_| 0.01);
        assert!((got[&1] / got[&2] - 3.0).abs() < 0.1, "{got:?}");
        queue.set_shares([(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
        let got = serve(&mut queue, 4000, |_| 0.01);
        assert!((got[&1] / got[&2] - 1.0).abs() < 0.1, "{got:?}");
        // One has a share of half of what all threads are.
        queue.set_shares([(JobId(1), 1.0)].into(), BTreeMap::new());
        let got = serve(&mut queue, 3000, |_| 0.01);
        assert!((got[&2] / got[&1] - 2.0).abs() < 0.1, "{got:?}");
        assert_eq!(std::iter::from_fn(|| work(&mut queue, 0.0)).count(), 8);
    }

    fn work(queue: &mut Queue<u64>, at: f64) -> Option<u64> {
        match queue.pop(at) {
            Next::Work(_, job) => Some(job),
            Next::At(_) | Next::Nothing => None,
        }
    }

    /// Threads that serve a queue for a while, each job's work taking its own time; the thread seconds that each job got.
    fn serve_on(
        threads: usize,
        queue: &mut Queue<u64>,
        until: f64,
        seconds: impl Fn(u64) -> f64,
    ) -> BTreeMap<u64, f64> {
        let mut got = BTreeMap::new();
        // When each thread is free, and what it is at.
        let mut busy: Vec<(f64, Option<(Served, u64)>)> = vec![(0.0, None); threads];
        loop {
            let next = busy.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there is a thread");
            let now = next.0;
            if now >= until {
                return got;
            }
            if let Some((served, job)) = next.1.take() {
                queue.done(served, seconds(job));
                *got.entry(job).or_default() += seconds(job);
                queue.push(JobId(job), 0, job);
            }
            match queue.pop(now) {
                Next::Work(served, job) => *next = (now + seconds(job), Some((served, job))),
                Next::At(at) => next.0 = at,
                Next::Nothing => next.0 = now + 0.001,
            }
        }
    }

    #[test]
    fn a_job_uses_no_more_than_its_limit_however_much_is_idle() {
        for seed in 0..50 {
            let dice = |number: u64| mix64(seed * 100 + number);
            let limits: BTreeMap<JobId, f64> =
                (1..=2).map(|job| (JobId(job), (dice(job) % 300 + 5) as f64 / 100.0)).collect();
            let mut queue = Queue::new(8);
            queue.set_shares([(JobId(1), 1.0)].into(), limits.clone());
            fill(&mut queue, &[1, 2]);
            let seconds = |job| (dice(job + 10) % 20 + 1) as f64 / 1000.0;
            let got = serve_on(8, &mut queue, 20.0, seconds);
            for (job, limit) in &limits {
                let used = got[&job.0] / 20.0;
                assert!(used <= limit * 1.02 + 0.02, "seed {seed}: {used} threads of {limit}");
                // Four pieces of work at a time are no more than four threads.
                assert!(used >= 0.9 * limit.min(4.0) - 0.02, "seed {seed}: {used} threads of {limit}");
            }
        }
    }

    #[test]
    fn what_a_limit_leaves_is_the_others() {
        let mut queue = Queue::new(4);
        queue.set_shares([(JobId(1), 3.0), (JobId(2), 1.0)].into(), [(JobId(1), 0.5)].into());
        fill(&mut queue, &[1, 2]);
        let got = serve_on(4, &mut queue, 10.0, |_| 0.005);
        assert!((got[&1] / 10.0 - 0.5).abs() < 0.03, "{got:?}");
        assert!(got[&2] / 10.0 > 3.3, "{got:?}");
    }

    #[test]
    fn time_without_work_is_not_saved_up() {
        let mut queue = Queue::new(4);
        queue.set_shares(BTreeMap::new(), [(JobId(1), 1.0)].into());
        fill(&mut queue, &[1]);
        assert!(matches!(queue.pop(100.0), Next::Work(served, _) if served.line == Some(JobId(1))));
        let served = Served { line: Some(JobId(1)), reckoned_seconds: 0.0 };
        queue.done(served, 0.5);
        let Next::At(at) = queue.pop(100.0) else { panic!("it has used half a second") };
        assert!((at - 100.4).abs() < 1e-9, "{at}");
        assert!(matches!(queue.pop(at), Next::Work(..)));
    }
}
