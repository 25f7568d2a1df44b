//! Size of the memory that a worker shares with clients. The memory budget of the worker includes it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts the bytes of all shared regions, leased or idle.
#[derive(Debug, Default)]
pub struct ShmBytes {
    bytes: AtomicU64,
    decreased: Notify,
}

impl ShmBytes {
    /// The current number of bytes.
    pub fn current(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until the number has decreased since the previous call.
    pub async fn wait_for_decrease(&self) {
        self.decreased.notified().await;
    }

    /// Adds bytes. Returns `false` and adds nothing if the sum would exceed `limit`.
    pub(super) fn add(&self, bytes: u64, limit: u64) -> bool {
        let within = |current: u64| current.checked_add(bytes).filter(|sum| *sum <= limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    pub(super) fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.decreased.notify_one();
    }
}
