//! The metrics table, and the indexes of a consumer's state against brute force. The consumer's tests cover its behaviour.

use tokio::time::Instant;

use super::ConsumerState;
use super::stream_state::next_stream;

impl ConsumerState {
    /// Compares every index and running total with all streams, splits and fetches.
    pub(crate) fn check_indexes(&self) {
        let Some(layout) = &self.layout else { return };
        let streams = self.streams.as_slice();
        assert_eq!(self.streams.next_index(), next_stream(streams, layout));
        let max_complete = streams.iter().map(|stream| stream.complete_splits()).max().unwrap_or(0);
        assert_eq!(self.streams.max_complete_splits(), max_complete);
        for (index, stream) in streams.iter().enumerate() {
            assert_eq!(self.streams.index_of(stream.id), Some(index));
        }
        let attempts = self.fetches.iter().flat_map(|(_, fetch)| &fetch.attempts);
        let outstanding: u64 = attempts.map(|attempt| attempt.outstanding_bytes()).sum();
        assert_eq!(self.fetches.outstanding_bytes(), outstanding);
    }

    /// Checks that the current fetch commands include every fetch that has a worker and credit.
    pub(crate) fn check_fetch_commands(&mut self, now: Instant) {
        let commands = self.take_fetch_commands(now);
        let is_ended = self.fatal_error.is_some() || self.job_state.is_ended();
        if !is_ended && self.first_credit(false).is_some() {
            for stream in self.streams.as_slice().iter().filter(|_| self.largest_piece.is_some()) {
                for (split, _) in self.missing_splits(stream).take(self.splits_ahead as usize) {
                    let is_fetched = self.fetches.get(split).is_some_and(|fetch| !fetch.attempts.is_empty());
                    assert!(is_fetched || self.choose_worker(split, now).is_none(), "{split:?}");
                }
            }
        }
        // The test starts no fetch, so these attempts end as interrupted ones.
        for command in commands {
            let reason = "the test starts no fetch".to_owned();
            self.on_outcome(command.split, command.attempt, super::FetchOutcome::Disconnected(reason), now);
        }
    }
}

#[test]
fn every_metric_has_a_unique_name_and_a_text() {
    let names: std::collections::BTreeSet<_> = crate::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), crate::METRICS.len());
    assert!(crate::METRICS.iter().all(|metric| metric.name.starts_with("feedline_client_")));
    assert!(crate::METRICS.iter().all(|metric| !metric.help.is_empty()));
}
