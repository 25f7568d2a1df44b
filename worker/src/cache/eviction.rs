//! The eviction policy of a tier. The policy counts the bytes of each prefix and selects the prefix whose rows are evicted. The
//! tiers evict the rows.
//!
//! Rows are never evicted to make room for rows of the same prefix. Each epoch needs each row once, so the oldest row would
//! be evicted shortly before it is needed again. No more rows are stored for a tenant that has reached its limit, even if
//! other rows could be evicted.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::ledger::{Ledger, LedgerColumn};
use crate::cache::rows::{CacheValues, CachedRow, Prefix, Tenant};
use crate::metrics;

/// Minimum ratio between the value of a new row and the value of an evicted row. The values are measurements, so without a
/// margin, rows of similar value would evict each other repeatedly.
const MIN_VALUE_RATIO: f64 = 1.25;

#[derive(Debug, Default)]
pub(in crate::cache) struct EvictionQueue {
    capacity_bytes: u64,
    held_bytes: u64,
    shares: BTreeMap<Prefix, Share>,
    /// The bytes of each tenant in all tiers.
    ledger: Arc<Ledger>,
    /// This tier in the ledger.
    column: LedgerColumn,
    /// A logical clock, which increases with each use of a prefix.
    use_count: u64,
}

/// The bytes and the value of one prefix.
#[derive(Debug, Clone, Default)]
struct Share {
    held_bytes: u64,
    /// Whether a running job uses the prefix.
    active: bool,
    /// Whether a pipeline has a `cache` operator at this prefix.
    has_cache_operator: bool,
    /// The tenants of the jobs that use the prefix, with their limits in bytes.
    tenants: BTreeMap<Tenant, u64>,
    /// The last measured value of the rows, or 0 if it was never measured.
    value: f64,
    /// The logical time at which the prefix was last active or received rows.
    last_use: u64,
    /// The size of the smallest row that the last call of [`EvictionQueue::admit`] rejected, or 0 if it admitted all rows.
    rejected_bytes: u64,
}

impl EvictionQueue {
    pub(in crate::cache) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, ..Self::default() }
    }

    /// Counts the bytes of tenants in this ledger, which all tiers share.
    pub(in crate::cache) fn use_ledger(&mut self, ledger: &Arc<Ledger>, column: LedgerColumn) {
        (self.ledger, self.column) = (Arc::clone(ledger), column);
        self.recount_tenants();
    }

    pub(in crate::cache) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(in crate::cache) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Sets the prefixes of the running jobs. If a value has not been measured, the previous value is used. Inactive
    /// prefixes that still have rows keep their value.
    pub(in crate::cache) fn set_active(&mut self, values: &CacheValues) {
        self.use_count += 1;
        for share in self.shares.values_mut() {
            share.active = false;
        }
        for (&prefix, value) in values {
            let share = self.shares.entry(prefix).or_default();
            (share.active, share.has_cache_operator, share.last_use) =
                (true, value.has_cache_operator, self.use_count);
            share.tenants.clone_from(&value.tenants);
            if value.saved_s_per_byte > 0.0 {
                share.value = value.saved_s_per_byte;
            }
        }
        self.shares.retain(|_, share| share.active || share.held_bytes > 0);
        self.recount_tenants();
    }

    /// Counts the bytes of each tenant. Rows of inactive prefixes are not counted, because they are evicted first.
    fn recount_tenants(&self) {
        let mut held: BTreeMap<Tenant, u64> = BTreeMap::new();
        for share in self.shares.values().filter(|share| share.active) {
            for tenant in share.tenants.keys() {
                *held.entry(Tenant::clone(tenant)).or_default() += share.held_bytes;
            }
        }
        self.ledger.set(self.column, held);
    }

    /// Whether the smallest row that the last call of [`Self::admit`] rejected would fit now.
    pub(in crate::cache) fn has_room(&self, prefix: Prefix) -> bool {
        let rejected_bytes = self.shares.get(&prefix).map_or(0, |share| share.rejected_bytes);
        self.available_bytes(prefix) >= rejected_bytes
    }

    /// Retains the rows that fit after evictions. Each row has an overhead of `row_bytes`, and all rows together have an overhead of
    /// `more_bytes`. Returns the size of the retained rows with overhead, or 0 if no row fits.
    pub(in crate::cache) fn admit(
        &mut self,
        prefix: Prefix,
        rows: &mut Vec<CachedRow>,
        (row_bytes, more_bytes): (u64, u64),
    ) -> u64 {
        if rows.is_empty() {
            return 0;
        }
        let available = self.available_bytes(prefix);
        let (mut admitted_bytes, mut smallest_rejected) = (more_bytes, u64::MAX);
        rows.retain(|(_, bytes)| {
            let size = bytes.len() as u64 + row_bytes;
            let fits = admitted_bytes + size <= available;
            if fits {
                admitted_bytes += size;
            } else {
                smallest_rejected = smallest_rejected.min(size + more_bytes);
            }
            fits
        });
        let share = self.shares.entry(prefix).or_default();
        share.rejected_bytes = if smallest_rejected == u64::MAX { 0 } else { smallest_rejected };
        if rows.is_empty() { 0 } else { admitted_bytes }
    }

    /// Number of bytes to evict before `more_bytes` fit.
    pub(in crate::cache) fn missing_bytes(&self, more_bytes: u64) -> u64 {
        (self.held_bytes + more_bytes).saturating_sub(self.capacity_bytes)
    }

    /// Selects the prefix whose rows are evicted next to make room for rows of `wanted`. Inactive prefixes come first.
    /// Prefixes that only the planner caches come before the same tenant's prefixes with a `cache` operator. Otherwise, the
    /// prefix with the smallest value comes first, and among equal values the least recently used prefix.
    pub(in crate::cache) fn next_victim(&self, wanted: Prefix) -> Option<Prefix> {
        let own = self.share(wanted);
        let victim = self.evictable(own.clone()).min_by(|(_, a), (_, b)| a.eviction_order(b, &own));
        victim.map(|(prefix, _)| prefix)
    }

    /// The inactive prefixes that have rows.
    pub(in crate::cache) fn inactive_prefixes(&self) -> Vec<Prefix> {
        let inactive = self.shares.iter().filter(|(_, share)| !share.active && share.held_bytes > 0);
        inactive.map(|(prefix, _)| *prefix).collect()
    }

    pub(in crate::cache) fn add(&mut self, prefix: Prefix, bytes: u64) {
        self.use_count += 1;
        let share = self.shares.entry(prefix).or_default();
        share.held_bytes += bytes;
        share.last_use = self.use_count;
        self.held_bytes += bytes;
        for tenant in share.charged_tenants() {
            self.ledger.add(self.column, tenant, bytes);
        }
    }

    pub(in crate::cache) fn remove(&mut self, prefix: Prefix, bytes: u64) {
        let Some(share) = self.shares.get_mut(&prefix) else { return };
        let bytes = bytes.min(share.held_bytes);
        share.held_bytes -= bytes;
        self.held_bytes -= bytes;
        for tenant in share.charged_tenants() {
            self.ledger.remove(self.column, tenant, bytes);
        }
    }

    /// Counts stored bytes of any prefix.
    pub(in crate::cache) fn count_stored(&self, bytes: u64) {
        metrics::count_stored(self.column.name(), bytes);
    }

    /// Counts bytes of a prefix that were evicted to make room for other rows.
    pub(in crate::cache) fn count_evicted(&self, prefix: Prefix, bytes: u64) {
        let is_active = self.shares.get(&prefix).is_some_and(|share| share.active);
        metrics::count_evicted(self.column.name(), bytes, is_active);
    }

    /// Removes all bytes of a prefix, after all of its rows were evicted.
    pub(in crate::cache) fn clear(&mut self, prefix: Prefix) {
        self.remove(prefix, u64::MAX);
    }

    /// Number of bytes that a prefix may add: free bytes and bytes that can be evicted. The remaining limits of its tenants apply.
    /// If several tenants use the prefix, the largest remaining limit applies.
    fn available_bytes(&self, prefix: Prefix) -> u64 {
        let own = self.share(prefix);
        let remaining =
            |(tenant, limit): (&Tenant, &u64)| limit.saturating_sub(self.ledger.held_bytes(tenant));
        let allowed = own.tenants.iter().map(remaining).max().unwrap_or(u64::MAX);
        let evictable: u64 = self.evictable(own).map(|(_, share)| share.held_bytes).sum();
        allowed.min(self.capacity_bytes.saturating_add(evictable).saturating_sub(self.held_bytes))
    }

    fn share(&self, prefix: Prefix) -> Share {
        self.shares.get(&prefix).cloned().unwrap_or_default()
    }

    /// The prefixes whose rows can be evicted to make room for rows of the prefix `own`. The prefix `own` itself is never
    /// included.
    fn evictable(&self, own: Share) -> impl Iterator<Item = (Prefix, &Share)> {
        let shares = self.shares.iter().map(|(prefix, share)| (*prefix, share));
        shares.filter(move |(_, share)| share.held_bytes > 0 && share.is_evictable_for(&own))
    }
}

impl Share {
    /// The tenants whose limits the prefix counts against.
    fn charged_tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.keys().filter(move |_| self.active)
    }

    /// The eviction rank, which takes precedence over the value. A `cache` operator raises the rank only among prefixes of the same
    /// tenant.
    fn rank(&self, other: &Self) -> (bool, bool) {
        (self.active, self.has_cache_operator && self.has_tenant_of(other))
    }

    fn has_tenant_of(&self, other: &Self) -> bool {
        let has_none = self.tenants.is_empty() && other.tenants.is_empty();
        has_none || self.tenants.keys().any(|tenant| other.tenants.contains_key(tenant))
    }

    fn is_evictable_for(&self, other: &Self) -> bool {
        match self.rank(other).cmp(&other.rank(self)) {
            Ordering::Less => true,
            Ordering::Equal => other.value > self.value && other.value >= MIN_VALUE_RATIO * self.value,
            Ordering::Greater => false,
        }
    }

    /// Compares the order in which two prefixes are evicted to make room for rows of the prefix `wanted`.
    fn eviction_order(&self, other: &Self, wanted: &Self) -> Ordering {
        let by_value = self.rank(wanted).cmp(&other.rank(wanted)).then(self.value.total_cmp(&other.value));
        by_value.then(self.last_use.cmp(&other.last_use))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::planned;
    use crate::cache::rows::{CacheValue, TenantCacheLimit};

    fn queue(capacity_bytes: u64, held: &[(Prefix, u64)]) -> EvictionQueue {
        let mut queue = EvictionQueue::new(capacity_bytes);
        held.iter().for_each(|(prefix, bytes)| queue.add(*prefix, *bytes));
        queue
    }

    fn rows(lengths: &[usize]) -> Vec<CachedRow> {
        (0..).zip(lengths.iter().map(|length| Bytes::from(vec![0; *length]))).collect()
    }

    #[test]
    fn rows_are_evicted_for_rows_of_clearly_more_value() {
        let mut queue = queue(10, &[(1, 10)]);
        for (value, is_evicted) in [(1.0, false), (1.24, false), (1.25, true), (9.0, true)] {
            queue.set_active(&planned([(1, 1.0), (2, value)]));
            assert_eq!(queue.next_victim(2), is_evicted.then_some(1), "{value}");
        }
        for invalid_value in [0.0, -1.0, f64::NAN] {
            queue.set_active(&planned([(1, 1.0), (3, invalid_value)]));
            assert_eq!(queue.next_victim(3), None, "{invalid_value}");
        }
    }

    #[test]
    fn rows_of_a_cache_operator_are_not_evicted_for_planned_rows() {
        let mut queue = queue(10, &[(1, 5), (2, 5)]);
        let named = |saved_s_per_byte| CacheValue {
            saved_s_per_byte,
            has_cache_operator: true,
            ..CacheValue::default()
        };
        let mut values = planned([(2, 9.0), (3, 99.0)]);
        values.extend([(1, named(1.0)), (4, named(0.5)), (5, named(2.0))]);
        queue.set_active(&values);
        assert_eq!(queue.next_victim(3), Some(2), "the planned prefix of two");
        assert_eq!(queue.next_victim(4), Some(2), "a cache operator precedes the value");
        queue.clear(2);
        assert_eq!([3, 4, 5].map(|prefix| queue.next_victim(prefix)), [None, None, Some(1)]);
        queue.set_active(&planned([(3, 1.0)]));
        assert_eq!(queue.next_victim(3), Some(1), "no running job uses the prefix");
    }

    #[test]
    fn rows_are_evicted_by_activity_then_value_then_use() {
        let mut queue = queue(100, &[(1, 10), (2, 10), (3, 10), (4, 10), (5, 10)]);
        queue.set_active(&planned([(1, 7.0), (2, 3.0), (9, 4.0)]));
        queue.set_active(&planned([(2, 3.0), (5, 2.0), (9, 4.0)]));
        let mut evicted = Vec::new();
        while let Some(victim) = queue.next_victim(9) {
            queue.clear(victim);
            evicted.push(victim);
        }
        assert_eq!(evicted, [3, 4, 1, 5, 2]);
        assert_eq!(queue.held_bytes(), 0);
    }

    #[test]
    fn an_unknown_value_is_replaced_by_the_last_known_value() {
        let mut queue = queue(10, &[(1, 5), (2, 5)]);
        queue.set_active(&planned([(1, 8.0), (2, 2.0)]));
        queue.set_active(&planned([(2, 2.0)]));
        queue.set_active(&planned([(1, 0.0), (2, 2.0)]));
        assert_eq!((queue.next_victim(1), queue.next_victim(2)), (Some(2), None));
    }

    #[test]
    fn a_prefix_has_room_again_once_a_row_of_the_rejected_size_fits() {
        let mut queue = queue(100, &[(1, 90)]);
        queue.set_active(&planned([(1, 1.0), (2, 1.0)]));
        assert!(queue.has_room(2));
        let mut put = rows(&[20, 4, 30]);
        assert_eq!(queue.admit(2, &mut put, (1, 2)), 7);
        assert_eq!(put, rows(&[20, 4, 30])[1..2]);
        assert!(!queue.has_room(2) && queue.has_room(1));
        queue.remove(1, 12);
        assert!(!queue.has_room(2), "22 bytes are free");
        queue.remove(1, 1);
        assert!(queue.has_room(2), "23 bytes are free");
        queue.add(1, 1);
        assert!(!queue.has_room(2));
        queue.set_active(&planned([(1, 1.0), (2, 2.0)]));
        assert!(queue.has_room(2), "rows of the other prefix can be evicted");
    }

    fn of(tenants: &[(&str, u64)], value: CacheValue) -> CacheValue {
        CacheValue {
            tenants: tenants.iter().map(|(name, limit)| ((*name).into(), *limit)).collect(),
            ..value
        }
    }

    #[test]
    fn a_cache_operator_does_not_count_for_other_tenants() {
        let mut queue = queue(10, &[(1, 5), (2, 5)]);
        let planned = |saved_s_per_byte| CacheValue { saved_s_per_byte, ..CacheValue::default() };
        let named = |saved_s_per_byte| CacheValue { has_cache_operator: true, ..planned(saved_s_per_byte) };
        let (a, b) = ([("a", u64::MAX)], [("b", u64::MAX)]);
        queue.set_active(&CacheValues::from([
            (1, of(&a, planned(1.0))),
            (2, of(&b, planned(1.0))),
            (3, of(&a, named(1.0))),
            (4, of(&b, planned(2.0))),
        ]));
        assert_eq!(queue.next_victim(3), Some(1), "the prefix has the same tenant");
        queue.clear(1);
        queue.add(3, 5);
        assert_eq!(queue.next_victim(3), None, "the other prefix has the same value");
        assert_eq!(queue.next_victim(4), Some(2), "the longest unused prefix of two with equal value");
        queue.clear(2);
        assert_eq!(
            queue.next_victim(4),
            Some(3),
            "the less valuable prefix of another tenant, despite its cache operator"
        );
    }

    #[test]
    fn a_tenant_never_exceeds_its_limit() {
        let mut memory = EvictionQueue::new(1_000);
        let mut disk = EvictionQueue::new(1_000);
        let ledger = Arc::default();
        memory.use_ledger(&ledger, LedgerColumn::Memory);
        disk.use_ledger(&ledger, LedgerColumn::Disk);
        let named = CacheValue { saved_s_per_byte: 9.0, has_cache_operator: true, ..CacheValue::default() };
        let values = |jobs: &[Prefix]| -> CacheValues {
            jobs.iter().map(|prefix| (*prefix, of(&[("a", 100)], named.clone()))).collect()
        };
        memory.set_active(&values(&[1, 2]));
        disk.set_active(&values(&[1, 2]));
        let mut put = rows(&[50, 50, 10]);
        let bytes = memory.admit(1, &mut put, (0, 0));
        assert_eq!((bytes, put.len()), (100, 2));
        memory.add(1, 60);
        disk.add(2, 35);
        assert!(!memory.has_room(1), "a row of 10 bytes was rejected, and 5 bytes are free");
        assert_eq!(disk.admit(1, &mut rows(&[6, 5, 1]), (0, 0)), 5, "bytes of other tiers count");
        assert_eq!(memory.admit(9, &mut rows(&[500]), (0, 0)), 500, "other tenants may use the free bytes");
        memory.remove(1, 60);
        assert_eq!(disk.admit(1, &mut rows(&[65]), (0, 0)), 65);
        memory.add(1, 60);
        memory.set_active(&values(&[2]));
        assert_eq!(disk.admit(2, &mut rows(&[65]), (0, 0)), 65, "rows of ended jobs do not count");
    }

    #[test]
    fn rows_of_several_tenants_are_stored_for_any_tenant_below_its_limit() {
        let mut queue = queue(1_000, &[]);
        let value = CacheValue { saved_s_per_byte: 1.0, ..CacheValue::default() };
        queue.set_active(&CacheValues::from([
            (1, of(&[("a", 10)], value.clone())),
            (2, of(&[("a", 10), ("b", 100)], value)),
        ]));
        queue.add(1, 10);
        assert_eq!(queue.admit(1, &mut rows(&[1]), (0, 0)), 0);
        assert_eq!(queue.admit(2, &mut rows(&[60]), (0, 0)), 60);
    }

    #[test]
    fn rows_of_a_tenant_without_a_limit_ignore_the_limits_of_others() {
        let mut queue = queue(1_000, &[]);
        let limited = TenantCacheLimit { tenant: "a".into(), bytes: 10 };
        let (mut own, mut shared) = (CacheValue::default(), CacheValue::default());
        own.add_job(1.0, false, Some(&limited));
        shared.add_job(2.0, false, Some(&limited));
        // A job of the default tenant, which plans do not name.
        shared.add_job(1.0, true, None);
        assert_eq!((shared.saved_s_per_byte, shared.has_cache_operator), (2.0, true));
        queue.set_active(&CacheValues::from([(1, own), (2, shared)]));
        assert_eq!(queue.admit(1, &mut rows(&[60]), (0, 0)), 0);
        assert_eq!(queue.admit(2, &mut rows(&[60, 500]), (0, 0)), 560);
    }
}
