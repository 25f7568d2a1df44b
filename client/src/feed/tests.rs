//! The table of metrics, and the indexes of a feed against brute force; what the feed does is tested through the consumer.

use tokio::time::Instant;

use super::Feed;
use super::stream_feed::lane_in_turn;

impl Feed {
    /// Compares every index and running total with what all lanes, splits and fetches say.
    pub(crate) fn check_indexes(&self) {
        let Some(layout) = &self.layout else { return };
        let lanes = self.lanes.as_slice();
        assert_eq!(self.lanes.next_in_turn(), lane_in_turn(lanes, layout));
        assert_eq!(self.lanes.most_held(), lanes.iter().map(|lane| lane.held_complete()).max().unwrap_or(0));
        for (place, lane) in lanes.iter().enumerate() {
            assert_eq!(self.lanes.place_of(lane.stream), Some(place));
        }
        let attempts = self.fetches.iter().flat_map(|(_, fetch)| &fetch.attempts);
        let outstanding: u64 = attempts.map(|attempt| attempt.outstanding()).sum();
        assert_eq!(self.fetches.outstanding(), outstanding);
    }

    /// After the orders of this moment no fetch is left to begin for which there are a worker and credit.
    pub(crate) fn check_orders(&mut self, now: Instant) {
        let orders = self.orders(now);
        assert!(
            self.fatal.is_some() || self.state.is_ended() || self.first_credit(false).is_none() || {
                let wanted = self.wanted(self.settings.splits_ahead as usize);
                wanted.iter().all(|wanted| {
                    let is_silent =
                        self.fetches.get(wanted.split).is_some_and(|fetch| !fetch.attempts.is_empty());
                    is_silent || self.choose_worker(wanted.split, now).is_none()
                })
            }
        );
        // They are not begun here: their attempts end as broken ones do.
        for order in orders {
            let why = "not begun in this test".to_owned();
            self.on_outcome(order.split, order.attempt, super::FetchOutcome::Broken(why), now);
        }
    }
}

#[test]
fn every_metric_has_a_name_of_its_own_and_a_text() {
    let names: std::collections::BTreeSet<_> = crate::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), crate::METRICS.len());
    assert!(crate::METRICS.iter().all(|metric| metric.name.starts_with("feedline_client_")));
    assert!(crate::METRICS.iter().all(|metric| !metric.text.is_empty()));
}
