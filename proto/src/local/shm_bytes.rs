//! How much memory is lent, for whoever keeps to a budget.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts the bytes of memory that are lent to clients or ready to be.
#[derive(Debug, Default)]
pub struct ShmBytes {
    bytes: AtomicU64,
    returned: Notify,
}

impl ShmBytes {
    /// Bytes now.
    pub fn now(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until some were given back since it was last asked.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    /// Adds bytes, unless there would be more than `limit`.
    pub(super) fn add(&self, bytes: u64, limit: u64) -> bool {
        let within = |lent: u64| lent.checked_add(bytes).filter(|lent| *lent <= limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.returned.notify_one();
    }
}
