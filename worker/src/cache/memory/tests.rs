//! Tests of evictions in a full memory tier: single cases, and random operations compared with a model of all rows.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::random::mix64;

use super::*;
use crate::cache::planned;
use crate::cache::rows::CacheValue;

/// Size of a row of 1,000 bytes with its overhead.
const ROW_SIZE: u64 = 1000 + ROW_OVERHEAD_BYTES;

fn row(id: u64, length: usize) -> CachedRow {
    (id, Bytes::from(vec![id as u8; length]))
}

/// Adds rows of 1,000 bytes.
fn put_rows(tier: &MemoryTier, prefix: Prefix, ids: impl IntoIterator<Item = u64>) {
    tier.put(prefix, ids.into_iter().map(|id| row(id, 1000)).collect());
}

fn set_active(tier: &MemoryTier, values: impl IntoIterator<Item = (Prefix, f64)>) {
    tier.set_active(Arc::new(planned(values)));
}

/// Returns the ids below 100 of the stored rows.
fn find_rows(tier: &MemoryTier, prefix: Prefix) -> Vec<u64> {
    let ids: Vec<u64> = (0..100).collect();
    let rows = tier.get(prefix, &ids);
    ids.into_iter().zip(rows).filter_map(|(id, row)| row.map(|_| id)).collect()
}

fn count_rows(tier: &MemoryTier, prefix: Prefix) -> usize {
    find_rows(tier, prefix).len()
}

#[test]
fn a_full_tier_stores_no_more_rows_until_its_jobs_end() {
    let tier = MemoryTier::new(3 * ROW_SIZE);
    set_active(&tier, [(1, 1.0)]);
    put_rows(&tier, 1, 0..5);
    assert_eq!(find_rows(&tier, 1), [0, 1, 2]);
    assert!(!tier.has_room(1));
    set_active(&tier, [(1, 1.0), (2, 1.0)]);
    put_rows(&tier, 2, [0]);
    assert_eq!((count_rows(&tier, 1), count_rows(&tier, 2)), (3, 0));
    assert!(!tier.has_room(2));
    set_active(&tier, [(2, 1.0)]);
    assert!(tier.has_room(2), "the rows of the first job can be evicted");
    put_rows(&tier, 2, [0]);
    assert_eq!((count_rows(&tier, 1), count_rows(&tier, 2)), (2, 1), "no more rows than needed");
    assert_eq!(tier.held_bytes(), 3 * ROW_SIZE);
    set_active(&tier, [(1, 1.0), (2, 1.0)]);
    assert!(!tier.has_room(1), "the job is active again");
}

#[test]
fn valuable_rows_evict_the_least_valuable_rows_and_no_more_than_needed() {
    let tier = MemoryTier::new(10 * ROW_SIZE);
    set_active(&tier, [(1, 1.0), (2, 2.0), (3, 4.0)]);
    put_rows(&tier, 1, 0..4);
    put_rows(&tier, 2, 0..6);
    let counts = || [count_rows(&tier, 1), count_rows(&tier, 2), count_rows(&tier, 3)];
    for (prefix, ids, expected) in
        [(3, 0..3, [1, 6, 3]), (3, 3..4, [0, 6, 4]), (2, 6..8, [0, 6, 4]), (3, 4..6, [0, 4, 6])]
    {
        put_rows(&tier, prefix, ids);
        assert_eq!(counts(), expected);
    }
    assert!(!tier.has_room(2) && tier.has_room(3));
    put_rows(&tier, 3, 6..20);
    assert_eq!(counts(), [0, 0, 10]);
    assert_eq!(
        find_rows(&tier, 3),
        (0..10).collect::<Vec<_>>(),
        "rows are not evicted for rows of their own prefix"
    );
    assert!(!tier.has_room(3));
    set_active(&tier, [(1, 5.0), (2, 2.0), (3, 4.0)]);
    assert!(tier.has_room(1) && !tier.has_room(2) && !tier.has_room(3));
}

#[test]
fn rows_of_inactive_prefixes_are_evicted_first() {
    let tier = MemoryTier::new(8 * ROW_SIZE);
    // The value of prefix 2 was never measured.
    set_active(&tier, [(1, 100.0), (3, 50.0), (4, 1.0)]);
    for prefix in 1..=4 {
        put_rows(&tier, prefix, [0, 1]);
    }
    set_active(&tier, [(4, 1.0), (5, 2.0)]);
    let steps = [(0..2, [2, 0, 2, 2]), (2..4, [2, 0, 0, 2]), (4..6, [0, 0, 0, 2]), (6..7, [0, 0, 0, 1])];
    for (ids, kept) in steps {
        put_rows(&tier, 5, ids);
        assert_eq!([1, 2, 3, 4].map(|prefix| count_rows(&tier, prefix)), kept);
    }
}

#[test]
fn a_row_that_cannot_fit_evicts_nothing() {
    let tier = MemoryTier::new(3 * ROW_SIZE);
    put_rows(&tier, 1, [0]);
    set_active(&tier, [(2, 1.0), (3, 1.0)]);
    put_rows(&tier, 2, [0, 1]);
    tier.put(3, vec![row(0, 1500)]);
    assert_eq!([1, 2, 3].map(|prefix| count_rows(&tier, prefix)), [1, 2, 0]);
    assert!(!tier.has_room(3), "a row of this size does not fit");
    put_rows(&tier, 3, [1]);
    assert_eq!([1, 2, 3].map(|prefix| count_rows(&tier, prefix)), [0, 2, 1]);
}

#[test]
fn rows_of_about_the_same_value_do_not_evict_each_other() {
    let tier = MemoryTier::new(40 * ROW_SIZE);
    set_active(&tier, [(1, 1.0), (2, 1.2)]);
    let mut kept = [BTreeSet::new(), BTreeSet::new()];
    for step in 0..1000 {
        let random = mix64(step);
        let (prefix, id) = (Prefix::from(1 + random % 2), (random >> 8) % 100);
        tier.put(prefix, vec![row(id, 500 + (random >> 16) as usize % 1000)]);
        let now = [1, 2].map(|prefix| find_rows(&tier, prefix).into_iter().collect::<BTreeSet<_>>());
        assert!(kept[0].is_subset(&now[0]) && kept[1].is_subset(&now[1]), "put {step} evicted a row");
        kept = now;
    }
    assert!(!tier.has_room(1) && !tier.has_room(2));
}

#[test]
fn maps_shrink_after_evictions() {
    let tier = MemoryTier::new(1000 * ROW_SIZE);
    put_rows(&tier, 1, 0..1000);
    set_active(&tier, [(2, 1.0)]);
    put_rows(&tier, 2, 0..990);
    let state = tier.lock();
    let kept = &state.prefixes[&1];
    assert_eq!((kept.rows.len(), kept.ids.len()), (10, 10));
    assert!(kept.rows.capacity() < 100 && kept.ids.capacity() < 100);
}

#[test]
fn a_row_that_is_stored_twice_counts_once() {
    let tier = MemoryTier::new(1 << 20);
    tier.put(1, vec![row(7, 10), row(7, 10)]);
    tier.put(1, vec![row(7, 10)]);
    assert_eq!(tier.held_bytes(), 10 + ROW_OVERHEAD_BYTES);
    assert!(tier.free_inactive());
    assert_eq!(tier.held_bytes(), 0);
    assert!(!tier.free_inactive());
}

/// A model of a tier: the rows that it contains, and the values of their prefixes.
#[derive(Default)]
struct Model {
    capacity_bytes: u64,
    kept: BTreeMap<(Prefix, u64), u64>,
    active: BTreeSet<Prefix>,
    values: BTreeMap<Prefix, f64>,
    with_cache_operator: BTreeSet<Prefix>,
}

impl Model {
    /// Returns the length of a row, which depends only on its prefix and id.
    fn length(prefix: Prefix, id: u64) -> usize {
        (mix64(prefix as u64 * 1000 + id) % 2000) as usize
    }

    /// Replaces the rows of the model with the rows of the tier.
    fn update(&mut self, tier: &MemoryTier) {
        self.kept.clear();
        for prefix in 1..=5 {
            for id in find_rows(tier, prefix) {
                self.kept.insert((prefix, id), Self::length(prefix, id) as u64 + ROW_OVERHEAD_BYTES);
            }
        }
    }

    fn held_bytes(&self) -> u64 {
        self.kept.values().sum()
    }

    fn set_active(&mut self, values: &CacheValues) {
        self.active = values.keys().copied().collect();
        let known = values.iter().map(|(prefix, value)| (*prefix, value.saved_s_per_byte));
        self.values.extend(known.filter(|(_, saved)| *saved > 0.0));
        for (prefix, value) in values {
            if value.has_cache_operator {
                self.with_cache_operator.insert(*prefix)
            } else {
                self.with_cache_operator.remove(prefix)
            };
        }
        let (active, kept) = (&self.active, &self.kept);
        let holds = |prefix: Prefix| kept.keys().any(|(holder, _)| *holder == prefix);
        self.values.retain(|prefix, _| active.contains(prefix) || holds(*prefix));
        self.with_cache_operator.retain(|prefix| active.contains(prefix) || holds(*prefix));
    }

    /// Returns the eviction rank. Smaller ranks are evicted first.
    fn rank(&self, prefix: Prefix) -> (bool, bool, f64) {
        let values = self.values.get(&prefix).copied().unwrap_or(0.0);
        (self.active.contains(&prefix), self.with_cache_operator.contains(&prefix), values)
    }

    fn is_evictable_for(&self, victim: Prefix, wanted: Prefix) -> bool {
        let (
            (is_active, has_cache_operator, values),
            (wanted_is_active, wanted_has_cache_operator, wanted_value),
        ) = (self.rank(victim), self.rank(wanted));
        let is_clear = wanted_value > values && wanted_value >= 1.25 * values;
        let (rank, wanted_rank) =
            ((is_active, has_cache_operator), (wanted_is_active, wanted_has_cache_operator));
        victim != wanted && if rank == wanted_rank { is_clear } else { wanted_rank > rank }
    }

    fn available_bytes(&self, wanted: Prefix) -> u64 {
        let evictable = self.kept.iter().filter(|((prefix, _), _)| self.is_evictable_for(*prefix, wanted));
        self.capacity_bytes - self.held_bytes() + evictable.map(|(_, size)| size).sum::<u64>()
    }

    /// Checks the evictions and the rejected rows of a put. `before` contains the rows before it, and `put` the sizes of its rows by id.
    fn check_put(&self, wanted: Prefix, before: &BTreeMap<(Prefix, u64), u64>, put: &BTreeMap<u64, u64>) {
        let evicted: BTreeMap<_, _> =
            before.iter().filter(|(key, _)| !self.kept.contains_key(*key)).collect();
        let kept: BTreeSet<Prefix> = self.kept.keys().map(|(prefix, _)| *prefix).collect();
        for victim in evicted.keys().map(|(prefix, _)| *prefix).collect::<BTreeSet<Prefix>>() {
            assert!(self.is_evictable_for(victim, wanted), "prefix {victim} was evicted for {wanted}");
            for &other in &kept {
                let first = self.is_evictable_for(other, wanted) && self.rank(other) < self.rank(victim);
                assert!(!first, "prefix {victim} was evicted for {wanted} before {other}");
            }
        }
        if let Some(largest) = evicted.values().max() {
            assert!(self.held_bytes() + *largest > self.capacity_bytes, "more rows were evicted than needed");
        }
        let rejected = put.iter().filter(|(id, _)| !self.kept.contains_key(&(wanted, **id)));
        for (id, size) in rejected {
            assert!(self.available_bytes(wanted) < *size, "row {id} was rejected although it fits");
        }
        let mut others = self.kept.keys().filter(|(prefix, id)| *prefix != wanted || !put.contains_key(id));
        assert!(others.all(|key| before.contains_key(key)), "the tier contains rows that were not added");
    }
}

#[test]
fn random_operations_match_a_brute_force_model() {
    let (mut evictions, mut rejections) = (0, 0);
    for seed in 0..10 {
        let capacity_bytes = 20_000 + 2000 * seed;
        let tier = MemoryTier::new(capacity_bytes);
        let mut model = Model { capacity_bytes, ..Model::default() };
        let mut draws = 0;
        let mut draw = |below: u64| {
            draws += 1;
            (mix64(seed << 32 | draws) >> 20) % below
        };
        for _ in 0..400 {
            let wanted = Prefix::from(1 + draw(5));
            match draw(12) {
                0 => {
                    let all_values = [0.0, 1.0, 1.2, 1.5, 2.0, 10.0];
                    let mut values = CacheValues::new();
                    for prefix in 1..=5 {
                        let value = all_values[draw(6) as usize];
                        if draw(3) > 0 {
                            values.insert(
                                prefix,
                                CacheValue {
                                    saved_s_per_byte: value,
                                    has_cache_operator: draw(4) == 0,
                                    ..CacheValue::default()
                                },
                            );
                        }
                    }
                    model.set_active(&values);
                    tier.set_active(Arc::new(values));
                }
                1 if draw(4) == 0 => {
                    let before = std::mem::take(&mut model.kept);
                    let freed = tier.free_inactive();
                    model.update(&tier);
                    let stay = before.keys().filter(|(prefix, _)| model.active.contains(prefix));
                    assert!(stay.eq(model.kept.keys()));
                    assert_eq!(freed, model.kept.len() < before.len());
                }
                _ => {
                    let ids: Vec<u64> = (0..1 + draw(6)).map(|_| draw(20)).collect();
                    let length = |id: u64| Model::length(wanted, id);
                    let before = model.kept.clone();
                    tier.put(wanted, ids.iter().map(|&id| row(id, length(id))).collect());
                    model.update(&tier);
                    let put = ids.iter().map(|&id| (id, length(id) as u64 + ROW_OVERHEAD_BYTES)).collect();
                    // The model does not support a row that occurs twice in a put.
                    if ids.iter().collect::<BTreeSet<_>>().len() == ids.len() {
                        model.check_put(wanted, &before, &put);
                        let is_kept = |id: &u64| model.kept.contains_key(&(wanted, *id));
                        let is_new = ids.iter().any(|id| !before.contains_key(&(wanted, *id)));
                        let is_rejected = !ids.iter().all(is_kept);
                        assert!(!is_new || tier.has_room(wanted) != is_rejected);
                        rejections += u32::from(is_rejected);
                        evictions += u32::from(before.keys().any(|key| !model.kept.contains_key(key)));
                    }
                }
            }
            assert_eq!(tier.held_bytes(), model.held_bytes());
            assert!(tier.held_bytes() <= capacity_bytes);
        }
    }
    assert!(evictions > 100 && rejections > 100, "{evictions} evictions, {rejections} rejections");
}
