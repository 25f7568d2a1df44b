//! Which work of the CPU pool is next: of jobs that have a share, that which has had least of it; of one job's work, the
//! nearest to a consumer. Knows no clock: it is told how long work took.
//!
//! Start-time fair queueing (Goyal, Vin, Chen, 1996): each line has a virtual time that grows by what its work takes,
//! divided by its share; the line that is behind goes first; a line that was empty does not catch up. What work will
//! take is reckoned by what its line's work took before, and put right once it is done. Jobs without a share stand in
//! one line together, in the order of their groups.

use std::collections::{BTreeMap, BinaryHeap};

use feedline_core::ids::JobId;

use super::Priority;

/// Who stands in a line: a job with a share, or all those without.
pub(super) type Line = Option<JobId>;

/// How much the latest work counts for what the next will take.
const NEWEST: f64 = 0.2;

/// Work that waits. Bounded by the groups in flight, which admission bounds in bytes.
#[derive(Debug)]
pub(super) struct Queue<T> {
    lines: BTreeMap<Line, Waiting<T>>,
    shares: BTreeMap<JobId, f64>,
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
        let share = self.shares.get(&entry.job);
        let (share, line) = (share.copied().unwrap_or(self.all), share.map(|_| entry.job));
        let now = self.now;
        let waiting = self.lines.entry(line).or_insert_with(|| Waiting {
            work: BinaryHeap::new(),
            share,
            virtual_seconds: now,
            usual_seconds: 0.0,
        });
        if waiting.work.is_empty() {
            waiting.virtual_seconds = waiting.virtual_seconds.max(now);
        }
        waiting.share = share;
        waiting.work.push(entry);
    }

    /// The next work; whoever takes it says when it is done.
    pub(super) fn pop(&mut self) -> Option<(Served, T)> {
        let ready = self.lines.iter_mut().filter(|(_, line)| !line.work.is_empty());
        let (line, waiting) =
            ready.min_by(|(_, one), (_, other)| one.virtual_seconds.total_cmp(&other.virtual_seconds))?;
        let entry = waiting.work.pop()?;
        self.now = self.now.max(waiting.virtual_seconds);
        let served = Served { line: *line, reckoned_seconds: waiting.usual_seconds };
        waiting.virtual_seconds += waiting.usual_seconds / waiting.share;
        Some((served, entry.work))
    }

    /// Work took this long.
    pub(super) fn done(&mut self, served: Served, seconds: f64) {
        // A line may have gone with its job's share.
        if let Some(line) = self.lines.get_mut(&served.line) {
            line.virtual_seconds += (seconds - served.reckoned_seconds) / line.share;
            line.usual_seconds += (seconds - line.usual_seconds) * NEWEST;
        }
    }

    /// Gives jobs their shares, those that are not named none. Work that waits stands in the new lines at once.
    pub(super) fn set_shares(&mut self, shares: BTreeMap<JobId, f64>) {
        if self.shares == shares {
            return;
        }
        self.shares = shares;
        let mut entries: Vec<Entry<T>> = Vec::new();
        for line in self.lines.values_mut() {
            entries.extend(line.work.drain());
        }
        let shares = &self.shares;
        self.lines.retain(|line, _| line.is_none_or(|job| shares.contains_key(&job)));
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
            let (served, job) = queue.pop().expect("there is work");
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
            queue.set_shares(shares.clone());
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
        queue.set_shares([(JobId(1), 1.0), (JobId(2), 1.0)].into());
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
        queue.set_shares([(JobId(3), 100.0)].into());
        queue.set_shares(BTreeMap::new());
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|(_, work)| work).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn shares_change_while_work_waits_and_none_is_lost() {
        let mut queue = Queue::new(2);
        fill(&mut queue, &[1, 2]);
        queue.set_shares([(JobId(1), 3.0), (JobId(2), 1.0)].into());
        let got = serve(&mut queue, 4000, |_| 0.01);
        assert!((got[&1] / got[&2] - 3.0).abs() < 0.1, "{got:?}");
        queue.set_shares([(JobId(1), 1.0), (JobId(2), 1.0)].into());
        let got = serve(&mut queue, 4000, |_| 0.01);
        assert!((got[&1] / got[&2] - 1.0).abs() < 0.1, "{got:?}");
        // One has a share of half of what all threads are.
        queue.set_shares([(JobId(1), 1.0)].into());
        let got = serve(&mut queue, 3000, |_| 0.01);
        assert!((got[&2] / got[&1] - 2.0).abs() < 0.1, "{got:?}");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 8);
    }
}
