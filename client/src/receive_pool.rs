//! Buffers that pieces are received into: 64-byte aligned, written once without clearing, used again. Where a GPU copies from them, they
//! are pinned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use feedline_pinned::{Gpu, PinnedBuffer};
use feedline_proto::batch::ALIGNMENT_BYTES;

/// Capacities are rounded up to this, so that pieces of nearly the same size share buffers.
const ROUND_BYTES: usize = 64 << 10;
/// Buffers that wait for use, beside the limit in bytes.
const IDLE_SLABS: usize = 64;

/// Buffers that wait for use.
#[derive(Debug)]
pub(crate) struct ReceivePool {
    state: Mutex<State>,
    idle_limit_bytes: usize,
    /// Bytes of buffers, used and idle, up to which all are kept in any case.
    kept_bytes: usize,
    pinning: Option<Pinning>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Memory>,
    /// Capacities of those in use.
    out_bytes: usize,
}

/// For which GPU buffers are pinned.
#[derive(Debug)]
struct Pinning {
    gpu: Arc<Gpu>,
    /// Whether it was said that no more memory can be pinned.
    has_said_full: AtomicBool,
}

impl ReceivePool {
    /// A pool that keeps at most this many bytes for later.
    pub(crate) fn new(idle_limit_bytes: u64) -> Arc<Self> {
        Self::with(idle_limit_bytes, 0, None)
    }

    /// A pool of pinned buffers. It also keeps what is not in use of `kept_bytes`: to unlock memory may wait for all that the GPU does.
    pub(crate) fn pinned(gpu: Arc<Gpu>, idle_limit_bytes: u64, kept_bytes: u64) -> Arc<Self> {
        Self::with(idle_limit_bytes, kept_bytes, Some(Pinning { gpu, has_said_full: AtomicBool::new(false) }))
    }

    fn with(idle_limit_bytes: u64, kept_bytes: u64, pinning: Option<Pinning>) -> Arc<Self> {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (idle_limit_bytes, kept_bytes) = (size(idle_limit_bytes), size(kept_bytes));
        Arc::new(Self { state: Mutex::default(), idle_limit_bytes, kept_bytes, pinning })
    }

    /// Whether its buffers are pinned, so that bytes are better there than where they lie.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinning.is_some()
    }

    /// A buffer for `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> ReceiveBuffer {
        let needed = (len + ALIGNMENT_BYTES).next_multiple_of(ROUND_BYTES);
        let found = self.state().find(needed);
        let mut memory = found.unwrap_or_else(|| self.allocate(needed));
        self.state().out_bytes += memory.capacity();
        let start = memory.align();
        ReceiveBuffer { memory, start, len, pool: Arc::downgrade(self) }
    }

    fn allocate(&self, bytes: usize) -> Memory {
        let Some(pinning) = &self.pinning else { return Memory::Heap(Vec::with_capacity(bytes)) };
        match PinnedBuffer::new(&pinning.gpu, bytes) {
            Ok(buffer) => Memory::Pinned(buffer),
            Err(error) => {
                if !pinning.has_said_full.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "memory for batches cannot be pinned, so copies to the GPU take longer; give the client a smaller buffer");
                }
                Memory::Heap(Vec::with_capacity(bytes))
            }
        }
    }

    fn put_back(&self, mut memory: Memory) {
        memory.clear();
        let mut state = self.state();
        state.out_bytes = state.out_bytes.saturating_sub(memory.capacity());
        let unused = self.kept_bytes.saturating_sub(state.out_bytes);
        state.idle.push(memory);
        let gone = state.drain(self.idle_limit_bytes.max(unused));
        // To give memory back takes longer than a lock should be held.
        drop(state);
        drop(gone);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The smallest idle buffer that fits and is not much too large.
    fn find(&mut self, needed: usize) -> Option<Memory> {
        let fits = |memory: &Memory| (needed..=2 * needed).contains(&memory.capacity());
        let found = self.idle.iter().enumerate().filter(|(_, memory)| fits(memory));
        let (place, _) = found.min_by_key(|(_, memory)| memory.capacity())?;
        Some(self.idle.swap_remove(place))
    }

    /// What is too much. The oldest go first: the sizes in use are the recent ones.
    fn drain(&mut self, limit_bytes: usize) -> Vec<Memory> {
        let mut bytes: usize = self.idle.iter().map(Memory::capacity).sum();
        let mut count = 0;
        while self.idle.len() - count > IDLE_SLABS || bytes > limit_bytes {
            bytes -= self.idle[count].capacity();
            count += 1;
        }
        self.idle.drain(..count).collect()
    }
}

/// Memory that is written from its start.
#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    Pinned(PinnedBuffer),
}

impl Memory {
    fn capacity(&self) -> usize {
        match self {
            Self::Heap(data) => data.capacity(),
            Self::Pinned(data) => data.capacity(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(data) => data,
            Self::Pinned(data) => data.as_slice(),
        }
    }

    /// Goes on to the first aligned byte, and says which it is.
    fn align(&mut self) -> usize {
        match self {
            Self::Heap(data) => {
                let start = data.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
                data.resize(start, 0);
                start
            }
            // It begins at the start of a page.
            Self::Pinned(_) => 0,
        }
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Heap(data) => {
                data.extend_from_slice(bytes);
                true
            }
            Self::Pinned(data) => data.append(bytes),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Heap(data) => data.clear(),
            Self::Pinned(data) => data.clear(),
        }
    }
}

/// A buffer that is being filled from its start; goes back to its pool when dropped.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    memory: Memory,
    /// First aligned byte.
    start: usize,
    len: usize,
    /// Where it goes back to, unless the consumer has ended.
    pool: Weak<ReceivePool>,
}

impl ReceiveBuffer {
    /// Bytes written.
    pub(crate) fn filled(&self) -> usize {
        self.memory.bytes().len() - self.start
    }

    /// Appends bytes; `false` when they would not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        self.filled() + bytes.len() <= self.len && self.memory.append(bytes)
    }

    /// The bytes, shared. The buffer goes back to the pool with the last of them.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ReceiveBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory.bytes()[self.start..]
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put_back(std::mem::replace(&mut self.memory, Memory::Heap(Vec::new())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_aligned_and_used_again() {
        let pool = ReceivePool::new(1 << 20);
        let mut slab = pool.take(1000);
        assert!(slab.append(&[7; 600]) && slab.append(&[8; 400]));
        assert!(!slab.append(&[9]), "no byte more than asked for");
        let address = slab.as_ref().as_ptr() as usize;
        assert_eq!(address % ALIGNMENT_BYTES, 0);
        let bytes = slab.freeze();
        let part = bytes.slice(990..);
        drop(bytes);
        assert_eq!(&part[..], &[8; 10]);
        assert!(pool.state().idle.is_empty(), "a view keeps the slab");
        drop(part);
        assert_eq!(pool.state().out_bytes, 0);
        let again = pool.take(900);
        assert_eq!(again.as_ref().as_ptr() as usize, address);
        assert_eq!(again.filled(), 0);
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let pool = ReceivePool::new(128 << 10);
        let slabs: Vec<ReceiveBuffer> = (0..4).map(|_| pool.take(1000)).collect();
        drop(slabs);
        assert_eq!(pool.state().idle.len(), 2);
    }
    #[test]
    fn what_is_not_in_use_of_the_bytes_to_be_kept_stays() {
        let pool = ReceivePool::with(0, 256 << 10, None);
        let mut slabs: Vec<ReceiveBuffer> = (0..6).map(|_| pool.take(1000)).collect();
        let mut idle = Vec::new();
        while slabs.pop().is_some() {
            idle.push(pool.state().idle.len());
        }
        // Of four buffers' bytes, those in use count, too.
        assert_eq!(idle, [0, 0, 1, 2, 3, 4]);
    }
}
