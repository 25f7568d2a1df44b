//! An amount of memory that several tasks share, which wait for each other.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// An amount of memory.
pub(super) struct SharedMemory {
    permits: Arc<Semaphore>,
    /// The number of permits, which are KiB.
    all: u32,
}

impl SharedMemory {
    pub(super) fn new(bytes: u64) -> Self {
        let all = kib(bytes).max(1);
        Self { permits: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Waits for a part of the memory. A larger part than all of the memory waits for all of it.
    pub(super) async fn acquire(&self, bytes: u64) -> SemaphorePermit<'_> {
        let permits = kib(bytes).min(self.all);
        self.permits.acquire_many(permits).await.expect("the semaphore is never closed")
    }

    /// Whether a part may ever be free.
    pub(super) fn can_hold(&self, bytes: u64) -> bool {
        kib(bytes) <= self.all
    }

    /// Returns a part of the memory, if it is free.
    pub(super) fn try_acquire(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_many_owned(kib(bytes)).ok()
    }
}

/// The number of KiB of `bytes`, rounded up.
pub(super) fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}
