//! A map of deadlines that finds the due keys without a scan.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::Millis;

/// One deadline for each key.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    times: BTreeMap<K, Millis>,
    by_time: BTreeSet<(Millis, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self { times: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    /// Sets the deadline of a key.
    pub(crate) fn set(&mut self, key: K, at: Millis) {
        match self.times.insert(key, at) {
            Some(before) if before == at => return,
            Some(before) => drop(self.by_time.remove(&(before, key))),
            None => {}
        }
        self.by_time.insert((at, key));
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.times.contains_key(&key)
    }

    pub(crate) fn remove(&mut self, key: K) {
        if let Some(at) = self.times.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Removes and returns the key with the earliest deadline, if the deadline is at or before `now`.
    pub(crate) fn pop_due(&mut self, now: Millis) -> Option<K> {
        let (at, key) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&(at, key));
        self.times.remove(&key);
        Some(key)
    }

    /// Removes and returns the keys of `range`.
    pub(crate) fn remove_range(&mut self, range: std::ops::RangeInclusive<K>) -> Vec<K> {
        let keys: Vec<K> = self.times.range(range).map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| self.remove(*key));
        keys
    }

    pub(crate) fn earliest(&self) -> Option<Millis> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(crate) fn latest(&self) -> Option<Millis> {
        self.by_time.last().map(|(at, _)| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn due_keys_equal_those_of_a_full_scan(
            steps in proptest::collection::vec((0u8..10, 0u32..5, 0u64..20), 0..200),
        ) {
            let mut deadlines = Deadlines::default();
            let mut all: BTreeMap<u32, Millis> = BTreeMap::new();
            for (kind, key, time) in steps {
                match kind {
                    0..6 => {
                        deadlines.set(key, time);
                        all.insert(key, time);
                    }
                    6 => {
                        deadlines.remove(key);
                        all.remove(&key);
                    }
                    7 => {
                        let removed = deadlines.remove_range(key..=key + 1);
                        let expected: Vec<u32> = all.range(key..=key + 1).map(|(key, _)| *key).collect();
                        prop_assert_eq!(&removed, &expected);
                        all.retain(|key, _| !expected.contains(key));
                    }
                    _ => {
                        let mut due: Vec<(Millis, u32)> =
                            all.extract_if(.., |_, at| *at <= time).map(|(key, at)| (at, key)).collect();
                        due.sort_unstable();
                        let popped: Vec<u32> = std::iter::from_fn(|| deadlines.pop_due(time)).collect();
                        prop_assert_eq!(popped, due.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
                    }
                }
                prop_assert_eq!(deadlines.len(), all.len());
                prop_assert_eq!(deadlines.by_time.len(), all.len());
                prop_assert_eq!(deadlines.earliest(), all.values().min().copied());
                prop_assert_eq!(deadlines.latest(), all.values().max().copied());
            }
        }
    }
}
