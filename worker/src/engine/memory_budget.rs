//! The memory budget of one worker: the bytes that each account uses, and reservations of bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use feedline_data::memory::{MemoryAccount, MemoryLimits, MemoryUsage};

/// Returns the bytes that the owner of a pool or a cache holds.
type UsageSource = Box<dyn Fn() -> u64 + Send + Sync>;

/// A budget of bytes with one account for each [`MemoryAccount`]. An account is the sum of its reservations and of what its
/// usage source returns.
pub(crate) struct MemoryBudget {
    budget_bytes: u64,
    reserved: [Arc<AtomicU64>; MemoryAccount::COUNT],
    sources: [OnceLock<UsageSource>; MemoryAccount::COUNT],
}

impl MemoryBudget {
    /// A budget whose accounts are empty.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, reserved: Default::default(), sources: Default::default() }
    }

    /// The size of the budget.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The limits of pools and caches that follow from the size of the budget.
    pub(crate) fn limits(&self) -> MemoryLimits {
        MemoryLimits::new(self.budget_bytes)
    }

    /// Reserves bytes until the reservation is dropped. The caller checks that the budget has them.
    pub(crate) fn reserve(&self, account: MemoryAccount, bytes: u64) -> MemoryReservation {
        let all = Arc::clone(self.counter(account));
        all.fetch_add(bytes, Ordering::Relaxed);
        MemoryReservation { bytes, all }
    }

    /// The reserved bytes of an account, for an owner that adds and subtracts them in another crate.
    pub(crate) fn counter(&self, account: MemoryAccount) -> &Arc<AtomicU64> {
        &self.reserved[account as usize]
    }

    /// Adds what `source` returns to the account. A second source for the same account is ignored.
    pub(crate) fn add_source(
        &self,
        account: MemoryAccount,
        source: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let _ = self.sources[account as usize].set(Box::new(source));
    }

    /// Bytes that an account uses.
    pub(crate) fn used_bytes(&self, account: MemoryAccount) -> u64 {
        let source = self.sources[account as usize].get();
        self.counter(account).load(Ordering::Relaxed) + source.map_or(0, |source| source())
    }

    /// Bytes that all accounts use.
    pub(crate) fn total_used_bytes(&self) -> u64 {
        MemoryAccount::ALL.into_iter().map(|account| self.used_bytes(account)).sum()
    }

    /// Bytes that each account uses.
    pub(crate) fn usage(&self) -> Vec<MemoryUsage> {
        let usage = |account| MemoryUsage { account, used_bytes: self.used_bytes(account) };
        MemoryAccount::ALL.map(usage).into()
    }
}

/// Reserved bytes of one account. Dropping the reservation releases them.
pub(crate) struct MemoryReservation {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl MemoryReservation {
    /// Changes the number of reserved bytes.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_the_sum_of_its_reservations_and_its_source() {
        let budget = MemoryBudget::new(1000);
        let mut images = budget.reserve(MemoryAccount::Images, 100);
        let more_images = budget.reserve(MemoryAccount::Images, 10);
        budget.add_source(MemoryAccount::Caches, || 7);
        budget.add_source(MemoryAccount::Caches, || 70);
        assert_eq!(budget.used_bytes(MemoryAccount::Images), 110);
        assert_eq!(budget.used_bytes(MemoryAccount::Caches), 7, "the second source is ignored");
        images.resize(50);
        drop(more_images);
        assert_eq!(budget.total_used_bytes(), 57);
        let used = budget.usage().into_iter().filter(|usage| usage.used_bytes > 0);
        let used: Vec<(MemoryAccount, u64)> = used.map(|usage| (usage.account, usage.used_bytes)).collect();
        assert_eq!(used, [(MemoryAccount::Images, 50), (MemoryAccount::Caches, 7)]);
        drop(images);
        assert_eq!(budget.total_used_bytes(), 7);
    }
}
