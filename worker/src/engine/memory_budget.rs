//! The memory budget of one worker. It tracks the bytes that each account uses, including reserved bytes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use feedline_data::memory::{MemoryAccount, MemoryLimits, MemoryUsage};

/// Returns the bytes that a pool or a cache currently uses.
type UsageSource = Box<dyn Fn() -> u64 + Send + Sync>;

/// A budget of bytes with one account for each [`MemoryAccount`]. The usage of an account is the sum of its
/// reservations and of the bytes that its usage source returns.
pub(crate) struct MemoryBudget {
    budget_bytes: u64,
    reserved: [Arc<AtomicU64>; MemoryAccount::COUNT],
    sources: [OnceLock<UsageSource>; MemoryAccount::COUNT],
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudget").field("budget_bytes", &self.budget_bytes).finish_non_exhaustive()
    }
}

impl MemoryBudget {
    /// Creates a budget with empty accounts.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, reserved: Default::default(), sources: Default::default() }
    }

    /// The size of the budget.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The limits of pools and caches, derived from the size of the budget.
    pub(crate) fn limits(&self) -> MemoryLimits {
        MemoryLimits::new(self.budget_bytes)
    }

    /// Reserves bytes until the reservation is dropped. The caller is responsible for checking that the budget has
    /// enough free bytes.
    pub(crate) fn reserve(&self, account: MemoryAccount, bytes: u64) -> MemoryReservation {
        let all = Arc::clone(self.counter(account));
        all.fetch_add(bytes, Ordering::Relaxed);
        MemoryReservation { bytes, all }
    }

    /// The counter of reserved bytes of an account, for code in other crates that updates the counter itself.
    pub(crate) fn counter(&self, account: MemoryAccount) -> &Arc<AtomicU64> {
        &self.reserved[account as usize]
    }

    /// Adds the bytes that `source` returns to the usage of the account. A second source for the same account is
    /// ignored.
    pub(crate) fn add_source(
        &self,
        account: MemoryAccount,
        source: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let _ = self.sources[account as usize].set(Box::new(source));
    }

    /// Returns the bytes that an account uses.
    pub(crate) fn used_bytes(&self, account: MemoryAccount) -> u64 {
        let source = self.sources[account as usize].get();
        self.counter(account).load(Ordering::Relaxed) + source.map_or(0, |source| source())
    }

    /// Returns the bytes that loaded graphs leave for batches.
    pub(crate) fn bytes_beside_graphs(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.used_bytes(MemoryAccount::Graphs))
    }

    /// Returns the bytes that all accounts use together.
    pub(crate) fn total_used_bytes(&self) -> u64 {
        MemoryAccount::ALL.into_iter().map(|account| self.used_bytes(account)).sum()
    }

    /// Returns the usage of each account.
    pub(crate) fn usage(&self) -> Vec<MemoryUsage> {
        let usage = |account| MemoryUsage { account, used_bytes: self.used_bytes(account) };
        MemoryAccount::ALL.map(usage).into()
    }
}

/// Reserved bytes of one account. Dropping the reservation releases them.
#[derive(Debug)]
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
