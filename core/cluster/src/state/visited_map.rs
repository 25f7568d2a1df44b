//! A map that records mutably borrowed entries, so that a step examines only entries that it may have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

#[derive(Debug)]
pub(crate) struct VisitedMap<K, V> {
    entries: BTreeMap<K, V>,
    visited: BTreeSet<K>,
}

impl<K, V> Default for VisitedMap<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), visited: BTreeSet::new() }
    }
}

impl<K: Ord + Copy, V> VisitedMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    /// Borrows an entry mutably and marks it as visited.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.visited.insert(*key);
        Some(entry)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.visited.insert(key);
        self.entries.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.visited.remove(key);
        self.entries.remove(key)
    }

    /// Marks an entry as visited without borrowing it.
    pub(crate) fn visit(&mut self, key: K) {
        if self.entries.contains_key(&key) {
            self.visited.insert(key);
        }
    }

    /// The keys of the entries that were visited since the last [`Self::take_visited`].
    pub(crate) fn visited(&self) -> &BTreeSet<K> {
        &self.visited
    }

    pub(crate) fn take_visited(&mut self) -> BTreeSet<K> {
        std::mem::take(&mut self.visited)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }

    pub(crate) fn last_key(&self) -> Option<K> {
        self.entries.last_key_value().map(|(key, _)| *key)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<K: Ord, V> Index<&K> for VisitedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        &self.entries[key]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_that_were_borrowed_mutably_are_visited() {
        let mut map = VisitedMap::default();
        (1..=4).for_each(|key| map.insert(key, 10 * key));
        assert_eq!(map.take_visited(), [1, 2, 3, 4].into());
        assert_eq!((map[&1], map.get(&2), map.get(&9), map.len()), (10, Some(&20), None, 4));
        assert!(map.visited().is_empty());
        *map.get_mut(&3).expect("it exists") += 1;
        assert_eq!(map.get_mut(&9), None);
        map.visit(4);
        map.visit(9);
        assert_eq!(map.visited(), &[3, 4].into());
        assert_eq!((map.remove(&4), map.contains_key(&4), map.contains_key(&3)), (Some(40), false, true));
        assert_eq!(map.take_visited(), [3].into());
        assert_eq!((map.last_key(), map.values().sum::<i32>()), (Some(3), 61));
        assert_eq!((map.keys().count(), map.iter().count()), (3, 3));
    }
}
