//! The queue of a worker's requests to one store: fair among jobs, first in first out within a job.
//!
//! Start-time fair queueing: each request of a job advances the job's virtual time by the reciprocal of its weight, and the
//! job with the smallest virtual time is next. A job that was idle continues at the time of the others, and so gains nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use feedline_data::ids::JobId;
use feedline_data::messages::StoreJobReport;

/// The weight of a job that the leader does not know yet: the mean.
const UNKNOWN_WEIGHT: f64 = 1.0;
/// The lowest weight. The leader gives a job without demand on this worker a weight near 0.
const MIN_WEIGHT: f64 = 1e-3;
/// Time without requests after which the counters of a job are removed.
const FORGET: Duration = Duration::from_secs(60);

/// A request that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedRequest {
    /// Identifies the request in the worker.
    pub id: u64,
    /// The job that the request belongs to.
    pub job: JobId,
    /// The number of requested bytes; 0 if unknown.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct JobQueue {
    waiting: VecDeque<PacedRequest>,
    virtual_time: f64,
    sent: u64,
    used: Duration,
}

/// A fair queue. The readers of a worker bound its length: each of them waits for one request.
#[derive(Debug, Default)]
pub(crate) struct DemandQueue {
    jobs: BTreeMap<JobId, JobQueue>,
    weights: BTreeMap<JobId, f64>,
    virtual_time: f64,
}

impl DemandQueue {
    /// Adds a request at the end of its job's queue, or at the front if the store rejected the request before.
    pub(crate) fn push(&mut self, now: Duration, request: PacedRequest, is_repeated: bool) {
        let virtual_time = self.virtual_time;
        let queue = self.jobs.entry(request.job).or_default();
        queue.used = now;
        if queue.waiting.is_empty() {
            queue.virtual_time = queue.virtual_time.max(virtual_time);
        }
        if is_repeated {
            queue.waiting.push_front(request);
        } else {
            queue.waiting.push_back(request);
        }
    }

    /// Removes a request that is no longer needed.
    pub(crate) fn remove(&mut self, request: PacedRequest) {
        if let Some(queue) = self.jobs.get_mut(&request.job) {
            queue.waiting.retain(|other| other.id != request.id);
        }
    }

    /// Returns the next request without removing it.
    pub(crate) fn peek(&self) -> Option<&PacedRequest> {
        self.next_queue().and_then(|(_, queue)| queue.waiting.front())
    }

    /// Removes and returns the next request.
    pub(crate) fn pop(&mut self) -> Option<PacedRequest> {
        let (job, _) = self.next_queue()?;
        let weight = self.weight(job);
        let queue = self.jobs.get_mut(&job)?;
        self.virtual_time = self.virtual_time.max(queue.virtual_time);
        queue.virtual_time += 1.0 / weight;
        queue.sent += 1;
        queue.waiting.pop_front()
    }

    fn next_queue(&self) -> Option<(JobId, &JobQueue)> {
        let waiting = self.jobs.iter().filter(|(_, queue)| !queue.waiting.is_empty());
        let next = waiting.min_by(|(_, a), (_, b)| a.virtual_time.total_cmp(&b.virtual_time));
        next.map(|(job, queue)| (*job, queue))
    }

    fn weight(&self, job: JobId) -> f64 {
        self.weights.get(&job).copied().unwrap_or(UNKNOWN_WEIGHT).max(MIN_WEIGHT)
    }

    /// Replaces the weights. They are scaled to a mean of 1, so that virtual times remain comparable. No job waits longer than
    /// for one request with its new weight, even if its last request had a weight near 0.
    pub(crate) fn set_weights(&mut self, weights: &[(JobId, f64)]) {
        let mean = weights.iter().map(|(_, weight)| weight).sum::<f64>() / weights.len().max(1) as f64;
        let scaled = |(job, weight): &(JobId, f64)| (*job, weight / mean.max(f64::MIN_POSITIVE));
        self.weights = weights.iter().map(scaled).collect();
        let latest = |job| self.virtual_time + 1.0 / self.weight(job);
        let latest: Vec<(JobId, f64)> = self.jobs.keys().map(|job| (*job, latest(*job))).collect();
        for (job, latest) in latest {
            if let Some(queue) = self.jobs.get_mut(&job) {
                queue.virtual_time = queue.virtual_time.min(latest);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.values().all(|queue| queue.waiting.is_empty())
    }

    /// Removes the counters of jobs that have not read the store for a minute.
    pub(crate) fn forget_idle_jobs(&mut self, now: Duration) {
        self.jobs.retain(|_, queue| !queue.waiting.is_empty() || now.saturating_sub(queue.used) < FORGET);
    }

    pub(crate) fn reports(&self) -> Vec<StoreJobReport> {
        let report = |(job, queue): (&JobId, &JobQueue)| StoreJobReport {
            job: *job,
            requests: queue.sent,
            waiting: u32::try_from(queue.waiting.len()).unwrap_or(u32::MAX),
        };
        self.jobs.iter().map(report).collect()
    }
}
