//! The store's bandwidth at the numbers of requests in flight that a job has used.
//!
//! Observations at only one concurrency do not determine the limit of the store, so that a job on few workers would soon seem to
//! read faster on more of them. The history therefore keeps observations at each concurrency, and forgets them after half an hour.

use std::collections::VecDeque;

use feedline_data::ids::Millis;

use crate::model::bandwidth::BandwidthObservation;

/// Maximum number of observations per job.
const MAX_OBSERVATIONS: usize = 32;
/// Time after which an observation says nothing about the store. A job that needs few workers tries more of them after this time.
const MAX_AGE_MS: Millis = 1_800_000;

/// Observations in the order of their times.
#[derive(Debug, Clone, Default)]
pub(super) struct BandwidthHistory {
    observations: VecDeque<(Millis, BandwidthObservation)>,
}

impl BandwidthHistory {
    /// Adds an observation, and removes those that it contradicts.
    pub(super) fn push(&mut self, now: Millis, observation: BandwidthObservation) {
        self.observations.retain(|(_, before)| !observation.contradicts(before));
        if self.observations.len() == MAX_OBSERVATIONS
            && let Some(index) = self.least_informative()
        {
            self.observations.remove(index);
        }
        self.observations.push_back((now, observation));
    }

    /// Returns the oldest of the observations with the most others at the same concurrency.
    fn least_informative(&self) -> Option<usize> {
        let others = |(_, one): &(Millis, BandwidthObservation)| {
            self.observations.iter().filter(|(_, other)| other.has_concurrency_of(one)).count()
        };
        let counted = self.observations.iter().map(others).enumerate();
        // The first of equal counts is the oldest.
        counted.min_by_key(|(_, count)| std::cmp::Reverse(*count)).map(|(index, _)| index)
    }

    /// Removes the observations that say nothing about the store any more.
    pub(super) fn expire(&mut self, now: Millis) {
        self.observations.retain(|(at, _)| now.saturating_sub(*at) < MAX_AGE_MS);
    }

    pub(super) fn observations(&self) -> Vec<BandwidthObservation> {
        self.observations.iter().map(|(_, observation)| *observation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bandwidth;

    fn at(concurrency: f64, bytes_per_s: f64) -> BandwidthObservation {
        BandwidthObservation { concurrency, bytes_per_s }
    }

    #[test]
    fn a_job_that_stays_at_one_concurrency_knows_the_limit_of_its_store() {
        let mut history = BandwidthHistory::default();
        for second in 0..4 {
            history.push(second * 1_000, at(2.0, 200e6));
            history.push(second * 1_000, at(48.0, 1_000e6));
        }
        for second in 4..900 {
            history.expire(second * 1_000);
            history.push(second * 1_000, at(10.0, 995e6));
        }
        let limit =
            Bandwidth::fit(&history.observations()).cap().expect("the limit was observed at 48 requests");
        assert!((limit / 1_000e6 - 1.0).abs() < 0.05, "{limit}");
        assert_eq!(history.observations().len(), MAX_OBSERVATIONS);
    }

    #[test]
    fn old_and_contradicted_observations_are_forgotten() {
        let mut history = BandwidthHistory::default();
        history.push(0, at(48.0, 1_000e6));
        history.push(10_000, at(2.0, 200e6));
        history.push(20_000, at(2.0, 700e6));
        assert_eq!(history.observations(), [at(48.0, 1_000e6), at(2.0, 700e6)]);
        history.expire(MAX_AGE_MS);
        assert_eq!(history.observations(), [at(2.0, 700e6)]);
    }
}
