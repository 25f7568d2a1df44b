//! Bytes of cached rows by tenant, over the tiers of one worker, so that one limit applies to all of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::rows::Tenant;

/// The tiers that the ledger counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::cache) enum LedgerColumn {
    /// Rows in memory.
    #[default]
    Memory,
    /// Rows on disk.
    Disk,
}

/// Bytes of cached rows of each tenant. Code that holds this lock takes no other lock.
#[derive(Debug, Default)]
pub(in crate::cache) struct Ledger(Mutex<BTreeMap<(Tenant, LedgerColumn), u64>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Tenant, LedgerColumn), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the bytes that a tier holds for each tenant; 0 for a missing tenant.
    pub(in crate::cache) fn set(&self, column: LedgerColumn, held: BTreeMap<Tenant, u64>) {
        let mut ledger = self.lock();
        ledger.retain(|(_, other), _| *other != column);
        ledger.extend(held.into_iter().map(|(tenant, bytes)| ((tenant, column), bytes)));
    }

    pub(in crate::cache) fn add(&self, column: LedgerColumn, tenant: &Tenant, bytes: u64) {
        *self.lock().entry((Tenant::clone(tenant), column)).or_default() += bytes;
    }

    pub(in crate::cache) fn remove(&self, column: LedgerColumn, tenant: &Tenant, bytes: u64) {
        if let Some(held) = self.lock().get_mut(&(Tenant::clone(tenant), column)) {
            *held = held.saturating_sub(bytes);
        }
    }

    /// Bytes that all tiers hold for a tenant.
    pub(in crate::cache) fn held_bytes(&self, tenant: &Tenant) -> u64 {
        let ledger = self.lock();
        let of = |column| ledger.get(&(Tenant::clone(tenant), column)).copied().unwrap_or(0);
        of(LedgerColumn::Memory) + of(LedgerColumn::Disk)
    }
}
