//! What a running group shares with the rest of the worker: threads, buffers and caches, its priority, and the memory that it
//! reserves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::{Pool, Priority};
use super::progress::SplitProgress;
use super::read::ReadResources;
use super::slab::SlabPool;
use crate::cache::Caches;

/// The resources of a worker that all groups share.
#[derive(Clone)]
pub(crate) struct WorkerResources {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slabs: Arc<SlabPool>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) reading: Arc<ReadResources>,
    /// Bytes of buffers that running groups have reserved and not allocated yet.
    pub(crate) planned_bytes: Arc<AtomicU64>,
    /// Bytes of decoded images that chunks hold between operators.
    pub(crate) image_bytes: Arc<AtomicU64>,
    /// Bytes of memory that function processes share with the worker.
    pub(crate) function_bytes: Arc<AtomicU64>,
}

/// The priority of a running group, and the progress of its split.
#[derive(Debug, Clone)]
pub(crate) struct TaskContext {
    pub(crate) priority: Priority,
    pub(crate) progress: SplitProgress,
}

/// Bytes that are counted in a total until the reservation is dropped.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl MemoryReservation {
    pub(crate) fn new(bytes: u64, total: &Arc<AtomicU64>) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, total: Arc::clone(total) }
    }

    /// Changes the number of reserved bytes.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_counts_until_it_is_dropped() {
        let total = Arc::new(AtomicU64::new(5));
        let mut reservation = MemoryReservation::new(10, &total);
        assert_eq!(total.load(Ordering::Relaxed), 15);
        reservation.resize(3);
        assert_eq!(total.load(Ordering::Relaxed), 8);
        drop(reservation);
        assert_eq!(total.load(Ordering::Relaxed), 5);
    }
}
