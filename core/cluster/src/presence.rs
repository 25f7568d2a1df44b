//! Which consumers of jobs that have not ended are there: those that reported within their lease time, counted as they come
//! and go.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, Millis};

/// Consumers that are there.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// When each reported last.
    seen: BTreeMap<(JobId, u32), Millis>,
    /// The same, the one that has been silent for longest in front.
    by_time: BTreeSet<(Millis, JobId, u32)>,
}

impl Presence {
    /// A consumer has reported, or counts as if it had.
    pub(super) fn see(&mut self, job: JobId, consumer: u32, now: Millis) {
        if let Some(before) = self.seen.insert((job, consumer), now) {
            self.by_time.remove(&(before, job, consumer));
        }
        self.by_time.insert((now, job, consumer));
    }

    /// A job has ended.
    pub(super) fn forget_job(&mut self, job: JobId) {
        let of_job = self.seen.range((job, 0)..=(job, u32::MAX));
        let gone: Vec<(u32, Millis)> = of_job.map(|((_, consumer), seen)| (*consumer, *seen)).collect();
        for (consumer, seen) in gone {
            self.seen.remove(&(job, consumer));
            self.by_time.remove(&(seen, job, consumer));
        }
    }

    /// Forgets those that have been silent for longer than their lease time.
    pub(super) fn expire(&mut self, now: Millis, lease_ms: u64) {
        while let Some(&(seen, job, consumer)) = self.by_time.first()
            && now.saturating_sub(seen) > lease_ms
        {
            self.by_time.pop_first();
            self.seen.remove(&(job, consumer));
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.seen.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE_MS: u64 = 10;

    proptest! {
        #[test]
        fn it_counts_what_a_look_at_all_of_them_does(
            steps in proptest::collection::vec((0u64..3, 0u32..4, 0u64..6, 0u8..10), 0..200),
        ) {
            let mut seats = Presence::default();
            let mut all: BTreeMap<(JobId, u32), Millis> = BTreeMap::new();
            let mut now = 0;
            for (job, consumer, passed, what) in steps {
                now += passed;
                let job = JobId(job);
                if what == 0 {
                    seats.forget_job(job);
                    all.retain(|(of, _), _| *of != job);
                } else {
                    seats.see(job, consumer, now);
                    all.insert((job, consumer), now);
                }
                seats.expire(now, LEASE_MS);
                let there = all.values().filter(|seen| now - **seen <= LEASE_MS).count();
                prop_assert_eq!(seats.count(), there);
                prop_assert_eq!(seats.by_time.len(), there);
            }
        }
    }
}
