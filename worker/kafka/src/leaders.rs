//! The leaders of partitions that do not answer. A listing does not wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::KafkaError;

/// Time between two requests to a leader that does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The leaders that did not answer, and when the last request to each of them began or failed.
#[derive(Debug, Default)]
pub(crate) struct UnreachableLeaders {
    silent: BTreeMap<i32, Instant>,
}

impl UnreachableLeaders {
    /// Returns the leaders that a listing must not wait for. None if all leaders are silent, so that a listing does not wait longer
    /// than necessary after an outage.
    pub(crate) fn silent(&self, mut leaders: impl Iterator<Item = i32> + Clone) -> BTreeSet<i32> {
        let silent: BTreeSet<i32> =
            leaders.clone().filter(|leader| self.silent.contains_key(leader)).collect();
        if leaders.all(|leader| silent.contains(&leader)) { BTreeSet::new() } else { silent }
    }

    /// Whether to ask a silent leader again. If so, the caller asks it now.
    pub(crate) fn begin_request(&mut self, leader: i32, now: Instant) -> bool {
        match self.silent.get_mut(&leader) {
            Some(at) if now.saturating_duration_since(*at) >= RETRY_AFTER => {
                *at = now;
                true
            }
            _ => false,
        }
    }

    /// Records whether a leader has answered. A permanent error is an answer: the next listing asks the leader, and returns the
    /// error. The log contains a line when this changes.
    pub(crate) fn record(&mut self, leader: i32, error: Option<&KafkaError>, now: Instant) {
        match error.filter(|error| error.is_retryable) {
            Some(error) => {
                if self.silent.insert(leader, now).is_none() {
                    tracing::warn!(broker = leader, %error, "a broker does not answer; new records of its partitions wait");
                }
            }
            None => {
                if self.silent.remove(&leader).is_some() {
                    tracing::info!(broker = leader, "the broker answers again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_does_not_wait_for_a_silent_leader_which_is_asked_again_after_a_while() {
        let mut leaders = UnreachableLeaders::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let silent = |leaders: &UnreachableLeaders| {
            leaders.silent([1, 2, 3].into_iter()).into_iter().collect::<Vec<i32>>()
        };
        assert!(silent(&leaders).is_empty());
        let error = KafkaError::retryable("no answer");
        leaders.record(2, Some(&error), start);
        assert_eq!(silent(&leaders), [2]);
        assert!(!leaders.begin_request(1, at(5)), "it answers");
        assert_eq!(
            [4, 5, 6, 10].map(|seconds| leaders.begin_request(2, at(seconds))),
            [false, true, false, true]
        );
        assert_eq!(silent(&leaders), [2], "it has not answered yet");
        leaders.record(1, Some(&error), start);
        leaders.record(3, Some(&error), start);
        assert!(silent(&leaders).is_empty(), "all leaders are silent");
        leaders.record(2, None, start);
        assert_eq!(silent(&leaders), [1, 3]);
    }

    #[test]
    fn a_listing_asks_a_leader_that_has_rejected_a_request() {
        let (mut leaders, now) = (UnreachableLeaders::default(), Instant::now());
        leaders.record(2, Some(&KafkaError::retryable("no answer")), now);
        leaders.record(2, Some(&KafkaError::permanent("access denied")), now);
        assert!(leaders.silent([1, 2].into_iter()).is_empty());
    }
}
