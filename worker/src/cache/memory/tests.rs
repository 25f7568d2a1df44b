//! Who goes for whom in a full tier: chosen cases, and random ones against a model that looks at every row.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::random::mix64;

use super::*;
use crate::cache::planned;
use crate::cache::rows::CacheValue;

/// What a row of 1,000 bytes takes.
const SIZE: u64 = 1000 + ROW_OVERHEAD_BYTES;

fn row(id: u64, length: usize) -> CachedRow {
    (id, Bytes::from(vec![id as u8; length]))
}

/// Puts rows of 1,000 bytes.
fn put(tier: &MemoryTier, prefix: Prefix, ids: impl IntoIterator<Item = u64>) {
    tier.put(prefix, ids.into_iter().map(|id| row(id, 1000)).collect());
}

fn active(tier: &MemoryTier, worth: impl IntoIterator<Item = (Prefix, f64)>) {
    tier.set_active(Arc::new(planned(worth)));
}

/// The ids below 100 that it keeps.
fn found(tier: &MemoryTier, prefix: Prefix) -> Vec<u64> {
    let ids: Vec<u64> = (0..100).collect();
    let rows = tier.get(prefix, &ids);
    ids.into_iter().zip(rows).filter_map(|(id, row)| row.map(|_| id)).collect()
}

fn count(tier: &MemoryTier, prefix: Prefix) -> usize {
    found(tier, prefix).len()
}

#[test]
fn a_full_tier_stores_no_more_rows_until_its_jobs_end() {
    let tier = MemoryTier::new(3 * SIZE);
    active(&tier, [(1, 1.0)]);
    put(&tier, 1, 0..5);
    assert_eq!(found(&tier, 1), [0, 1, 2]);
    assert!(!tier.has_room(1));
    active(&tier, [(1, 1.0), (2, 1.0)]);
    put(&tier, 2, [0]);
    assert_eq!((count(&tier, 1), count(&tier, 2)), (3, 0));
    assert!(!tier.has_room(2));
    active(&tier, [(2, 1.0)]);
    assert!(tier.has_room(2), "the rows of the first job can be evicted");
    put(&tier, 2, [0]);
    assert_eq!((count(&tier, 1), count(&tier, 2)), (2, 1), "no more rows than needed");
    assert_eq!(tier.held_bytes(), 3 * SIZE);
    active(&tier, [(1, 1.0), (2, 1.0)]);
    assert!(!tier.has_room(1), "the job is active again");
}

#[test]
fn valuable_rows_evict_the_least_valuable_rows_and_no_more_than_needed() {
    let tier = MemoryTier::new(10 * SIZE);
    active(&tier, [(1, 1.0), (2, 2.0), (3, 4.0)]);
    put(&tier, 1, 0..4);
    put(&tier, 2, 0..6);
    let counts = || [count(&tier, 1), count(&tier, 2), count(&tier, 3)];
    for (prefix, ids, expected) in
        [(3, 0..3, [1, 6, 3]), (3, 3..4, [0, 6, 4]), (2, 6..8, [0, 6, 4]), (3, 4..6, [0, 4, 6])]
    {
        put(&tier, prefix, ids);
        assert_eq!(counts(), expected);
    }
    assert!(!tier.has_room(2) && tier.has_room(3));
    put(&tier, 3, 6..20);
    assert_eq!(counts(), [0, 0, 10]);
    assert_eq!(found(&tier, 3), (0..10).collect::<Vec<_>>(), "its own rows stay");
    assert!(!tier.has_room(3));
    active(&tier, [(1, 5.0), (2, 2.0), (3, 4.0)]);
    assert!(tier.has_room(1) && !tier.has_room(2) && !tier.has_room(3));
}

#[test]
fn rows_of_inactive_prefixes_are_evicted_first() {
    let tier = MemoryTier::new(8 * SIZE);
    // Nobody has ever said what the second is worth.
    active(&tier, [(1, 100.0), (3, 50.0), (4, 1.0)]);
    for prefix in 1..=4 {
        put(&tier, prefix, [0, 1]);
    }
    active(&tier, [(4, 1.0), (5, 2.0)]);
    let steps = [(0..2, [2, 0, 2, 2]), (2..4, [2, 0, 0, 2]), (4..6, [0, 0, 0, 2]), (6..7, [0, 0, 0, 1])];
    for (ids, kept) in steps {
        put(&tier, 5, ids);
        assert_eq!([1, 2, 3, 4].map(|prefix| count(&tier, prefix)), kept);
    }
}

#[test]
fn a_row_that_cannot_fit_evicts_nothing() {
    let tier = MemoryTier::new(3 * SIZE);
    put(&tier, 1, [0]);
    active(&tier, [(2, 1.0), (3, 1.0)]);
    put(&tier, 2, [0, 1]);
    tier.put(3, vec![row(0, 1500)]);
    assert_eq!([1, 2, 3].map(|prefix| count(&tier, prefix)), [1, 2, 0]);
    assert!(!tier.has_room(3), "a row of this size does not fit");
    put(&tier, 3, [1]);
    assert_eq!([1, 2, 3].map(|prefix| count(&tier, prefix)), [0, 2, 1]);
}

#[test]
fn rows_of_about_the_same_value_do_not_evict_each_other() {
    let tier = MemoryTier::new(40 * SIZE);
    active(&tier, [(1, 1.0), (2, 1.2)]);
    let mut kept = [BTreeSet::new(), BTreeSet::new()];
    for step in 0..1000 {
        let random = mix64(step);
        let (prefix, id) = (Prefix::from(1 + random % 2), (random >> 8) % 100);
        tier.put(prefix, vec![row(id, 500 + (random >> 16) as usize % 1000)]);
        let now = [1, 2].map(|prefix| found(&tier, prefix).into_iter().collect::<BTreeSet<_>>());
        assert!(kept[0].is_subset(&now[0]) && kept[1].is_subset(&now[1]), "put {step} cost a row");
        kept = now;
    }
    assert!(!tier.has_room(1) && !tier.has_room(2));
}

#[test]
fn maps_shrink_after_evictions() {
    let tier = MemoryTier::new(1000 * SIZE);
    put(&tier, 1, 0..1000);
    active(&tier, [(2, 1.0)]);
    put(&tier, 2, 0..990);
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

/// A model of a tier: the rows that it must hold, by the values of their prefixes.
#[derive(Default)]
struct Model {
    capacity_bytes: u64,
    kept: BTreeMap<(Prefix, u64), u64>,
    active: BTreeSet<Prefix>,
    worth: BTreeMap<Prefix, f64>,
    named: BTreeSet<Prefix>,
}

impl Model {
    /// Sizes are a function of prefix and id.
    fn length(prefix: Prefix, id: u64) -> usize {
        (mix64(prefix as u64 * 1000 + id) % 2000) as usize
    }

    fn look(&mut self, tier: &MemoryTier) {
        self.kept.clear();
        for prefix in 1..=5 {
            for id in found(tier, prefix) {
                self.kept.insert((prefix, id), Self::length(prefix, id) as u64 + ROW_OVERHEAD_BYTES);
            }
        }
    }

    fn held_bytes(&self) -> u64 {
        self.kept.values().sum()
    }

    fn set_active(&mut self, worth: &CacheValues) {
        self.active = worth.keys().copied().collect();
        let known = worth.iter().map(|(prefix, value)| (*prefix, value.saved_s_per_byte));
        self.worth.extend(known.filter(|(_, saved)| *saved > 0.0));
        for (prefix, value) in worth {
            if value.has_cache_operator {
                self.named.insert(*prefix)
            } else {
                self.named.remove(prefix)
            };
        }
        let (active, kept) = (&self.active, &self.kept);
        let holds = |prefix: Prefix| kept.keys().any(|(holder, _)| *holder == prefix);
        self.worth.retain(|prefix, _| active.contains(prefix) || holds(*prefix));
        self.named.retain(|prefix| active.contains(prefix) || holds(*prefix));
    }

    /// Less goes first.
    fn rank(&self, prefix: Prefix) -> (bool, bool, f64) {
        let worth = self.worth.get(&prefix).copied().unwrap_or(0.0);
        (self.active.contains(&prefix), self.named.contains(&prefix), worth)
    }

    fn gives_way(&self, victim: Prefix, wanted: Prefix) -> bool {
        let ((is_active, has_cache_operator, worth), (would_be_active, would_be_named, wanted_worth)) =
            (self.rank(victim), self.rank(wanted));
        let is_clear = wanted_worth > worth && wanted_worth >= 1.25 * worth;
        let (rank, wanted_rank) = ((is_active, has_cache_operator), (would_be_active, would_be_named));
        victim != wanted && if rank == wanted_rank { is_clear } else { wanted_rank > rank }
    }

    fn available_bytes(&self, wanted: Prefix) -> u64 {
        let giving = self.kept.iter().filter(|((prefix, _), _)| self.gives_way(*prefix, wanted));
        self.capacity_bytes - self.held_bytes() + giving.map(|(_, size)| size).sum::<u64>()
    }

    /// That what a put changed is what it had to change; `before` is what was kept, `put` the rows' sizes by id.
    fn check_put(&self, wanted: Prefix, before: &BTreeMap<(Prefix, u64), u64>, put: &BTreeMap<u64, u64>) {
        let gone: BTreeMap<_, _> = before.iter().filter(|(key, _)| !self.kept.contains_key(*key)).collect();
        let kept: BTreeSet<Prefix> = self.kept.keys().map(|(prefix, _)| *prefix).collect();
        for victim in gone.keys().map(|(prefix, _)| *prefix).collect::<BTreeSet<Prefix>>() {
            assert!(self.gives_way(victim, wanted), "{victim} went for {wanted}");
            for &other in &kept {
                let first = self.gives_way(other, wanted) && self.rank(other) < self.rank(victim);
                assert!(!first, "{victim} went for {wanted} before {other}");
            }
        }
        if let Some(largest) = gone.values().max() {
            assert!(self.held_bytes() + *largest > self.capacity_bytes, "more rows were evicted than needed");
        }
        let refused = put.iter().filter(|(id, _)| !self.kept.contains_key(&(wanted, **id)));
        for (id, size) in refused {
            assert!(self.available_bytes(wanted) < *size, "row {id} would have fitted");
        }
        let mut others = self.kept.keys().filter(|(prefix, id)| *prefix != wanted || !put.contains_key(id));
        assert!(others.all(|key| before.contains_key(key)), "rows came from nowhere");
    }
}

#[test]
fn random_operations_match_a_brute_force_model() {
    let (mut evictions, mut refusals) = (0, 0);
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
                    let worths = [0.0, 1.0, 1.2, 1.5, 2.0, 10.0];
                    let mut worth = CacheValues::new();
                    for prefix in 1..=5 {
                        let value = worths[draw(6) as usize];
                        if draw(3) > 0 {
                            worth.insert(
                                prefix,
                                CacheValue {
                                    saved_s_per_byte: value,
                                    has_cache_operator: draw(4) == 0,
                                    ..CacheValue::default()
                                },
                            );
                        }
                    }
                    model.set_active(&worth);
                    tier.set_active(Arc::new(worth));
                }
                1 if draw(4) == 0 => {
                    let before = std::mem::take(&mut model.kept);
                    let freed = tier.free_inactive();
                    model.look(&tier);
                    let stay = before.keys().filter(|(prefix, _)| model.active.contains(prefix));
                    assert!(stay.eq(model.kept.keys()));
                    assert_eq!(freed, model.kept.len() < before.len());
                }
                _ => {
                    let ids: Vec<u64> = (0..1 + draw(6)).map(|_| draw(20)).collect();
                    let length = |id: u64| Model::length(wanted, id);
                    let before = model.kept.clone();
                    tier.put(wanted, ids.iter().map(|&id| row(id, length(id))).collect());
                    model.look(&tier);
                    let put = ids.iter().map(|&id| (id, length(id) as u64 + ROW_OVERHEAD_BYTES)).collect();
                    // A row that is in a put twice is reckoned with twice.
                    if ids.iter().collect::<BTreeSet<_>>().len() == ids.len() {
                        model.check_put(wanted, &before, &put);
                        let is_kept = |id: &u64| model.kept.contains_key(&(wanted, *id));
                        let is_new = ids.iter().any(|id| !before.contains_key(&(wanted, *id)));
                        let is_refused = !ids.iter().all(is_kept);
                        assert!(!is_new || tier.has_room(wanted) != is_refused);
                        refusals += u32::from(is_refused);
                        evictions += u32::from(before.keys().any(|key| !model.kept.contains_key(key)));
                    }
                }
            }
            assert_eq!(tier.held_bytes(), model.held_bytes());
            assert!(tier.held_bytes() <= capacity_bytes);
        }
    }
    assert!(evictions > 100 && refusals > 100, "{evictions} evictions, {refusals} refusals");
}
