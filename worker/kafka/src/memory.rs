//! The memory of all clients of a worker: how many partitions are fetched ahead at a time, and how large a block may become.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::KafkaError;

/// Bounds of the number of bytes of one partition that librdkafka requests at a time.
const MIN_FETCH_BYTES: u64 = 64 << 10;
const MAX_FETCH_BYTES: u64 = 1 << 20;
/// The usual size of the other records of a block that contains a large one.
const OTHER_RECORDS_BYTES: u64 = 1 << 20;
/// Number of partitions that are fetched at a time, unless the bounds require fewer.
const WANTED_PARTITIONS: u64 = 32;
/// Bytes that a partition uses while it is fetched, as a multiple of the bytes of a request: the queue and a response of librdkafka,
/// and as much in a read that took them out of the queue.
const REQUESTS_PER_PARTITION: u64 = 4;
/// Maximum number of bytes of a response with several partitions.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// librdkafka rejects a smaller limit of responses.
const MIN_RESPONSE_BYTES: u64 = 1 << 20;
/// Size of a block that needs no permit, even if a smaller block was expected.
const MIN_FREE_BYTES: u64 = 256 << 10;
/// Interval in which a read that waits for memory checks whether it was cancelled.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// The limits of the memory of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// The memory budget of the worker in bytes, for messages.
    pub budget_bytes: u64,
    /// Maximum number of bytes of the records of one block.
    pub block_bytes: u64,
    /// Maximum number of bytes that are fetched ahead. At least one partition is fetched.
    pub prefetch_bytes: u64,
}

/// The memory of all clients of a worker.
pub struct ClientMemory {
    limits: ClientLimits,
    /// The bytes in use, for the worker's memory budget.
    used_bytes: Arc<AtomicU64>,
    slots: Mutex<FetchSlots>,
    /// Notified when a slot is free or idle.
    slot_freed: Condvar,
    /// Whether a read of a block that is larger than expected holds memory.
    is_growing: Mutex<bool>,
    growth_ended: Condvar,
}

/// The partitions that are fetched.
#[derive(Default)]
struct FetchSlots {
    open: u64,
    /// Readers that are fetched ahead although no read runs, the least recently used first.
    idle: BTreeMap<IdleTurn, Weak<dyn IdleReader>>,
    turns: u64,
}

/// A reader of a partition that no read may use.
pub(crate) trait IdleReader: Send + Sync {
    /// Stops fetching, unless a read runs.
    fn stop_if_unused(&self);
}

/// The turn in which a reader became idle.
pub(crate) type IdleTurn = u64;

/// The right to fetch one partition ahead.
pub(crate) struct FetchSlot {
    memory: Arc<ClientMemory>,
}

/// The memory of a block that is being read.
pub(crate) struct BlockMemory {
    memory: Arc<ClientMemory>,
    /// The size that the caller has reserved.
    free_bytes: u64,
    /// Bytes beyond `free_bytes` that this block uses.
    extra_bytes: u64,
}

impl std::fmt::Debug for ClientMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientMemory").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cancelled() -> KafkaError {
    KafkaError::retryable("the read was cancelled")
}

impl ClientMemory {
    /// Creates the memory of a worker. Adds the bytes in use to `used_bytes`.
    pub fn new(limits: ClientLimits, used_bytes: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            used_bytes,
            slots: Mutex::default(),
            slot_freed: Condvar::new(),
            is_growing: Mutex::new(false),
            growth_ended: Condvar::new(),
        })
    }

    /// Number of bytes of one partition that librdkafka requests at a time, and that it holds before it pauses the requests.
    pub(crate) fn fetch_bytes(&self) -> u64 {
        let wanted = self.limits.prefetch_bytes / (WANTED_PARTITIONS * REQUESTS_PER_PARTITION);
        wanted.clamp(MIN_FETCH_BYTES, MAX_FETCH_BYTES)
    }

    /// Bytes that a partition uses while it is fetched.
    fn partition_bytes(&self) -> u64 {
        REQUESTS_PER_PARTITION * self.fetch_bytes()
    }

    /// Maximum number of bytes of a response with several partitions.
    pub(crate) fn response_bytes(&self) -> u64 {
        self.limits.prefetch_bytes.clamp(MIN_RESPONSE_BYTES, MAX_RESPONSE_BYTES)
    }

    /// Maximum number of bytes of a response with one batch of records. A response also contains other records.
    pub(crate) fn batch_bytes(&self) -> u64 {
        (self.limits.block_bytes + self.response_bytes()).min(1_000_000_000)
    }

    /// The setting that admits `bytes` in one block, beside other records.
    pub(crate) fn advice(&self, bytes: u64) -> String {
        let bytes = u128::from(bytes) + u128::from(OTHER_RECORDS_BYTES);
        let budget = bytes * u128::from(self.limits.budget_bytes);
        let mib = budget.div_ceil(u128::from(self.limits.block_bytes.max(1)) << 20);
        format!(
            "set the workers' `--memory` to at least {mib}MiB, or store large payloads in an object store and their URLs in the topic"
        )
    }

    /// Waits until a partition may be fetched. Stops another partition that no read uses, if necessary.
    pub(crate) fn open_slot(
        self: &Arc<Self>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<FetchSlot, KafkaError> {
        let max_open = (self.limits.prefetch_bytes / self.partition_bytes()).max(1);
        let mut slots = lock(&self.slots);
        while slots.open >= max_open {
            if let Some((_, reader)) = slots.idle.pop_first() {
                drop(slots);
                // The reader releases its slot, unless a read has started meanwhile.
                if let Some(reader) = reader.upgrade() {
                    reader.stop_if_unused();
                }
                slots = lock(&self.slots);
                continue;
            }
            if is_cancelled() {
                return Err(cancelled());
            }
            let waited = self.slot_freed.wait_timeout(slots, WAIT_SLICE);
            slots = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        slots.open += 1;
        self.used_bytes.fetch_add(self.partition_bytes(), Ordering::Relaxed);
        Ok(FetchSlot { memory: Arc::clone(self) })
    }

    /// Records that no read uses a partition that is fetched.
    pub(crate) fn add_idle(&self, reader: Weak<dyn IdleReader>) -> IdleTurn {
        let mut slots = lock(&self.slots);
        slots.turns += 1;
        let turn = slots.turns;
        slots.idle.insert(turn, reader);
        self.slot_freed.notify_one();
        turn
    }

    /// Records that a read uses the partition again, or that it is no longer fetched.
    pub(crate) fn remove_idle(&self, turn: IdleTurn) {
        lock(&self.slots).idle.remove(&turn);
    }

    /// Creates the memory of a block for which the caller has reserved `reserved_bytes`.
    pub(crate) fn block(self: &Arc<Self>, reserved_bytes: u64) -> BlockMemory {
        let free_bytes = reserved_bytes.max(MIN_FREE_BYTES).min(self.limits.block_bytes);
        BlockMemory { memory: Arc::clone(self), free_bytes, extra_bytes: 0 }
    }
}

impl Drop for FetchSlot {
    fn drop(&mut self) {
        lock(&self.memory.slots).open -= 1;
        self.memory.used_bytes.fetch_sub(self.memory.partition_bytes(), Ordering::Relaxed);
        self.memory.slot_freed.notify_one();
    }
}

impl BlockMemory {
    /// Whether a block of this size fits.
    pub(crate) fn is_allowed(&self, bytes: u64) -> bool {
        bytes <= self.memory.limits.block_bytes
    }

    /// The setting that admits `bytes` in one block.
    pub(crate) fn advice(&self, bytes: u64) -> String {
        self.memory.advice(bytes)
    }

    /// Maximum size of a block in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.memory.limits.block_bytes
    }

    /// Charges a block of this size. Only one block at a time exceeds the size that its caller has reserved.
    pub(crate) fn grow(&mut self, bytes: u64, is_cancelled: &dyn Fn() -> bool) -> Result<(), KafkaError> {
        let extra = bytes.saturating_sub(self.free_bytes);
        if extra <= self.extra_bytes {
            return Ok(());
        }
        if self.extra_bytes == 0 {
            let mut is_growing = lock(&self.memory.is_growing);
            while *is_growing {
                if is_cancelled() {
                    return Err(cancelled());
                }
                let waited = self.memory.growth_ended.wait_timeout(is_growing, WAIT_SLICE);
                is_growing = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            *is_growing = true;
        }
        self.memory.used_bytes.fetch_add(extra - self.extra_bytes, Ordering::Relaxed);
        self.extra_bytes = extra;
        Ok(())
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        if self.extra_bytes > 0 {
            self.memory.used_bytes.fetch_sub(self.extra_bytes, Ordering::Relaxed);
            *lock(&self.memory.is_growing) = false;
            self.memory.growth_ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Absent;

    impl IdleReader for Absent {
        fn stop_if_unused(&self) {}
    }

    fn memory(partitions: u64) -> (Arc<ClientMemory>, Arc<AtomicU64>) {
        let used = Arc::<AtomicU64>::default();
        let limits = ClientLimits {
            budget_bytes: 64 << 20,
            block_bytes: 16 << 20,
            prefetch_bytes: partitions * REQUESTS_PER_PARTITION * MIN_FETCH_BYTES,
        };
        (ClientMemory::new(limits, Arc::clone(&used)), used)
    }

    #[test]
    fn at_most_the_allowed_partitions_are_fetched_ahead() {
        let (memory, used) = memory(2);
        let never = || false;
        let first = memory.open_slot(&never).expect("a slot is free");
        let second = memory.open_slot(&never).expect("a slot is free");
        assert_eq!(used.load(Ordering::Relaxed), 8 * MIN_FETCH_BYTES);
        let error = memory.open_slot(&|| true).err().expect("no slot is free");
        assert!(error.is_retryable && error.message.contains("cancelled"), "{error}");
        let waiting = std::thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.open_slot(&|| false).map(drop)
        });
        drop(first);
        waiting.join().expect("no panic").expect("a slot was freed");
        drop(second);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_partition_is_fetched_even_with_a_small_budget() {
        let (memory, _) = memory(0);
        assert!(memory.open_slot(&|| true).is_ok());
        assert_eq!(memory.response_bytes(), MIN_RESPONSE_BYTES);
    }

    #[test]
    fn a_larger_budget_makes_larger_requests() {
        let fetch_bytes = |prefetch_bytes| {
            let limits = ClientLimits { budget_bytes: 1 << 40, block_bytes: 1 << 30, prefetch_bytes };
            ClientMemory::new(limits, Arc::default()).fetch_bytes()
        };
        assert_eq!(
            [0, 32 << 20, 128 << 20, 1 << 40].map(fetch_bytes),
            [64 << 10, 256 << 10, 1 << 20, 1 << 20]
        );
    }

    #[test]
    fn idle_readers_that_no_longer_exist_are_forgotten() {
        let (memory, _) = memory(1);
        let slot = memory.open_slot(&|| false).expect("a slot is free");
        let turn = memory.add_idle(Weak::<Absent>::new());
        assert!(memory.open_slot(&|| true).is_err());
        assert!(lock(&memory.slots).idle.is_empty());
        memory.remove_idle(turn);
        drop(slot);
    }

    #[test]
    fn one_block_at_a_time_exceeds_its_reservation() {
        let (memory, used) = memory(1);
        let mut first = memory.block(1 << 20);
        first.grow(1 << 20, &|| true).expect("it is reserved");
        assert_eq!(used.load(Ordering::Relaxed), 0);
        first.grow(3 << 20, &|| true).expect("no other block grows");
        first.grow(5 << 20, &|| true).expect("it grows already");
        assert_eq!(used.load(Ordering::Relaxed), 4 << 20);
        let mut second = memory.block(1 << 20);
        second.grow(1 << 20, &|| true).expect("it is reserved");
        assert!(second.grow(2 << 20, &|| true).is_err(), "the first block grows");
        drop(first);
        assert_eq!(used.load(Ordering::Relaxed), 0);
        second.grow(2 << 20, &|| true).expect("the first block has ended");
        assert!(second.is_allowed(16 << 20) && !second.is_allowed((16 << 20) + 1));
    }

    #[test]
    fn the_advice_names_a_budget_that_admits_the_block() {
        let (memory, _) = memory(1);
        let advice = memory.advice(20 << 20);
        assert!(advice.starts_with("set the workers' `--memory` to at least 84MiB,"), "{advice}");
    }
}
