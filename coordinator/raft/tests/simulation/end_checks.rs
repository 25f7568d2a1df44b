//! Checks of a run: whether it has ended, its end, and the leases of dead workers.

use feedline_cluster::records::Record;
use feedline_data::ids::{JobId, Millis};
use feedline_data::messages::{JobState, MAX_LOST_WORKERS};

use super::World;
use crate::consumer::Consumer;

/// Maximum time for which a dead worker keeps leases: its last report may take 3 s, then the lease time and some ticks.
const LEASE_MS: Millis = 6_500;

impl World {
    /// Whether every consumer has learned that its job has ended, and every live worker has reported its final counters.
    pub(super) fn is_settled(&self) -> bool {
        let is_over = |of: usize| {
            let job = self.job(of);
            let told = self.status.iter().find(|status| Some(status.job) == job);
            told.is_some_and(|status| status.settled && status.state.is_ended())
        };
        self.consumers.iter().all(|consumer| consumer.alive && consumer.ended.is_some())
            && (0..self.scenario.jobs.len()).all(is_over)
    }

    pub(super) fn check_end(&self) -> Result<(), String> {
        let is_right = |consumer: &&Consumer| match &consumer.ended {
            Some(JobState::Completed) => true,
            _ => self.is_empty(consumer.seat.of) || self.is_given_up(consumer.seat.of),
        };
        if let Some(other) = self.consumers.iter().find(|consumer| !is_right(consumer)) {
            return Err(format!("consumer {:?} received {:?}", other.seat, other.ended));
        }
        let kept = self.coordinators.snapshot();
        for of in 0..self.scenario.jobs.len() {
            let jobs: Vec<Option<JobId>> = self.consumers_of(of).map(|consumer| consumer.job).collect();
            if jobs.iter().any(|job| *job != jobs[0]) {
                return Err(format!("the consumers joined different jobs: {jobs:?}"));
            }
            // A late request may have opened the job again.
            let leased =
                |record: &Record| matches!(record, Record::Granted { job, .. } if Some(*job) == jobs[0]);
            if kept.iter().any(leased) {
                return Err("leases outlive their job".to_owned());
            }
        }
        self.coordinators.check_replay()
    }

    /// Whether a job has failed because an epoch delivered no rows, and no consumer has any.
    pub(super) fn is_empty(&self, of: usize) -> bool {
        let has_failed = |consumer: &Consumer| match &consumer.ended {
            Some(JobState::Failed(message)) => message.contains("delivered no row to any consumer"),
            _ => false,
        };
        self.consumers_of(of).all(|consumer| has_failed(consumer) && consumer.app.rows() == 0)
    }

    /// Whether a job has failed because several workers were lost while they listed or indexed its source, or loaded its graph. The
    /// faults of a run may cause this by chance.
    pub(super) fn is_given_up(&self, of: usize) -> bool {
        let has_failed = |consumer: &Consumer| match &consumer.ended {
            Some(JobState::Failed(message)) => message.contains(" workers were lost "),
            _ => false,
        };
        self.silenced_workers >= u64::from(MAX_LOST_WORKERS) && self.consumers_of(of).all(has_failed)
    }

    /// Checks that dead workers hold no leases.
    pub(super) fn check_leases(&self) -> Result<(), String> {
        if self.coordinators.leader().is_none() || self.now < self.coordinators.serving_since + LEASE_MS {
            return Ok(());
        }
        for record in self.coordinators.snapshot() {
            let Record::Granted { worker, .. } = &record else { continue };
            if self.died.get(worker).is_some_and(|died| self.now > died + LEASE_MS) {
                return Err(format!(
                    "a worker dead since {} still has leases at {}: {record:?}",
                    self.died[worker], self.now
                ));
            }
        }
        Ok(())
    }
}
