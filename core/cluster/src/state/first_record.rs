//! The wait of an unbounded job for the first record of its topics, which determines the columns. Soft state: a new leader prepares
//! the job again.

use std::collections::BTreeMap;

use feedline_data::ids::Millis;
use feedline_data::kafka_range::KafkaRange;
use feedline_data::manifest::ShardRef;

/// First pause before topics without a record are listed again, in milliseconds. Each further pause is twice as long.
const FIRST_PAUSE_MS: u64 = 500;
const MAX_PAUSE_MS: u64 = 5_000;
/// Why a job waits.
const NO_RECORD: &str =
    "the topics contain no record that determines the columns; the job waits for the next record";

#[derive(Debug, Default)]
pub(crate) struct FirstRecordWait {
    /// The time at which the job is prepared again; `None` while it does not wait.
    pub(crate) prepare_again_at: Option<Millis>,
    /// The last listing, with the first offsets of the first listing.
    pub(crate) listing: Vec<ShardRef>,
    /// The number of listings without a record.
    attempts: u32,
}

impl FirstRecordWait {
    /// Schedules the next listing after a listing without a record.
    pub(crate) fn on_no_record(&mut self, now: Millis) {
        self.prepare_again_at = Some(now + (FIRST_PAUSE_MS << self.attempts.min(8)).min(MAX_PAUSE_MS));
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Whether the next listing is due. Returns true once.
    pub(crate) fn take_due(&mut self, now: Millis) -> bool {
        self.prepare_again_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns for each partition whether it has the same end as in the last listing, in which it had no record.
    pub(crate) fn searched(&self, listed: &[ShardRef]) -> Vec<bool> {
        let end = |shard: &ShardRef| shard.kafka_range().map(|range| (range.topic_id, range.to));
        let ends: BTreeMap<&str, _> =
            self.listing.iter().map(|shard| (shard.url.as_str(), end(shard))).collect();
        let is_searched =
            |shard: &ShardRef| self.waits() && ends.get(shard.url.as_str()) == Some(&end(shard));
        listed.iter().map(is_searched).collect()
    }

    /// Whether a search has found no record.
    pub(crate) fn waits(&self) -> bool {
        self.attempts > 0
    }

    /// Why the job waits.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        self.waits().then_some(NO_RECORD)
    }

    /// Returns a listing with the first offsets of the first listing, because records may have arrived since then. Partitions that
    /// were added since then follow, from their first record. A partition whose leader does not answer has no range: it keeps the
    /// range of the last listing.
    pub(crate) fn continued(&self, listed: Vec<ShardRef>) -> Vec<ShardRef> {
        let mut listed: BTreeMap<String, ShardRef> =
            listed.into_iter().map(|shard| (shard.url.clone(), shard)).collect();
        let mut shards = Vec::with_capacity(listed.len());
        for last in &self.listing {
            let Some(mut shard) = listed.remove(&last.url) else { continue };
            match (last.kafka_range(), shard.kafka_range()) {
                (Some(_), None) => shard = last.clone(),
                (Some(first), Some(range)) if first.topic_id == range.topic_id => {
                    shard.version = KafkaRange { from: first.from, ..range }.to_string();
                }
                _ => {}
            }
            shards.push(shard);
        }
        shards.extend(listed.into_values().filter(|shard| shard.kafka_range().is_some()));
        shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_seconds() {
        let (mut wait, mut now) = (FirstRecordWait::default(), 0);
        assert_eq!(wait.reason(), None);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            wait.on_no_record(now);
            let at = wait.prepare_again_at.expect("it waits");
            assert!(!wait.take_due(at - 1) && wait.take_due(at) && !wait.take_due(at));
            pauses.push(at - now);
            now = at;
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        assert_eq!(wait.reason(), Some(NO_RECORD));
    }

    fn shard(partition: u32, version: &str) -> ShardRef {
        ShardRef {
            url: format!("kafka://a:1/t/{partition}"),
            version: version.to_owned(),
            ..ShardRef::default()
        }
    }

    #[test]
    fn later_listings_keep_the_first_offsets_and_the_partitions_that_do_not_answer() {
        let listing = vec![shard(0, "id@5-5"), shard(1, "id@3-3"), shard(2, "id@0-0"), shard(3, "id@1-1")];
        let wait = FirstRecordWait { listing, attempts: 1, ..FirstRecordWait::default() };
        let listed =
            vec![shard(0, "id@0-9"), shard(2, "new@0-4"), shard(4, "id@2-6"), shard(1, ""), shard(5, "")];
        let expected = [shard(0, "id@5-9"), shard(1, "id@3-3"), shard(2, "new@0-4"), shard(4, "id@2-6")];
        assert_eq!(wait.continued(listed), expected);
    }

    #[test]
    fn only_new_offsets_are_searched() {
        let first = vec![shard(0, "id@0-5"), shard(1, "id@0-0")];
        let mut wait = FirstRecordWait { listing: first.clone(), ..FirstRecordWait::default() };
        assert_eq!(wait.searched(&first), [false, false], "the first listing was not searched");
        wait.on_no_record(0);
        let searched = |versions: [(u32, &str); 2]| {
            wait.searched(&versions.map(|(partition, version)| shard(partition, version)))
        };
        assert_eq!(searched([(0, "id@3-5"), (1, "id@0-0")]), [true, true]);
        assert_eq!(searched([(0, "id@0-6"), (1, "id@0-0")]), [false, true]);
        assert_eq!(searched([(0, "new@0-5"), (1, "id@0-0")]), [false, true]);
        assert_eq!(searched([(0, "id@0-5"), (2, "id@0-0")]), [true, false]);
    }
}
