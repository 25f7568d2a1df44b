//! Counts each tenant's bytes of cached rows in memory and on disk, because both tiers share the tenant's limit.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::rows::Tenant;

/// A tier in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::cache) enum LedgerColumn {
    #[default]
    Memory,
    Disk,
}

impl LedgerColumn {
    /// Name of the tier in metrics.
    pub(in crate::cache) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// Each tenant's bytes of cached rows. Code that holds this lock takes no other lock.
#[derive(Debug, Default)]
pub(in crate::cache) struct Ledger(Mutex<BTreeMap<(Tenant, LedgerColumn), u64>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Tenant, LedgerColumn), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the byte counts of all tenants in one tier. The count of a tenant that `held` does not contain becomes 0.
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

    /// A tenant's bytes in all tiers.
    pub(in crate::cache) fn held_bytes(&self, tenant: &Tenant) -> u64 {
        let ledger = self.lock();
        let bytes_in = |column| ledger.get(&(Tenant::clone(tenant), column)).copied().unwrap_or(0);
        bytes_in(LedgerColumn::Memory) + bytes_in(LedgerColumn::Disk)
    }
}
