//! A pool of receive buffers. The buffers are aligned to 64 bytes, and reused without clearing. They are pinned if the user copies
//! batches to a GPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use feedline_common::idle_buffers::{IdleBuffers, ReusableBuffer};
use feedline_pinned::{Gpu, PinnedBuffer};
use feedline_proto::batch::ALIGNMENT_BYTES;

/// Granularity of capacities. Pieces of similar sizes can reuse the same buffers.
const CAPACITY_STEP_BYTES: usize = 64 << 10;
/// Maximum number of idle buffers. Their total size has a separate limit.
const MAX_IDLE_BUFFERS: usize = 64;

/// A pool of receive buffers.
#[derive(Debug)]
pub(crate) struct ReceivePool {
    buffers: Mutex<PooledBuffers>,
    idle_limit_bytes: usize,
    /// The pool frees idle buffers only if used and idle buffers exceed this size.
    min_retained_bytes: usize,
    pinning: Option<Pinning>,
}

#[derive(Debug)]
struct PooledBuffers {
    idle: IdleBuffers<BufferMemory>,
    /// Total capacity of the buffers in use.
    used_bytes: usize,
}

/// Pins buffers for a GPU.
#[derive(Debug)]
struct Pinning {
    gpu: Arc<Gpu>,
    /// Whether the pool has logged a warning that memory cannot be pinned.
    has_warned: AtomicBool,
}

impl ReceivePool {
    /// Creates a pool. `idle_limit_bytes` is the maximum size of all idle buffers.
    pub(crate) fn new(idle_limit_bytes: u64) -> Arc<Self> {
        Self::with(idle_limit_bytes, 0, None)
    }

    /// Creates a pool of pinned buffers. While the size of all buffers is at most `min_retained_bytes`, no buffer is freed, because
    /// unpinning memory may wait for the GPU.
    pub(crate) fn pinned(gpu: Arc<Gpu>, idle_limit_bytes: u64, min_retained_bytes: u64) -> Arc<Self> {
        Self::with(
            idle_limit_bytes,
            min_retained_bytes,
            Some(Pinning { gpu, has_warned: AtomicBool::new(false) }),
        )
    }

    fn with(idle_limit_bytes: u64, min_retained_bytes: u64, pinning: Option<Pinning>) -> Arc<Self> {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (idle_limit_bytes, min_retained_bytes) = (size(idle_limit_bytes), size(min_retained_bytes));
        let buffers =
            Mutex::new(PooledBuffers { idle: IdleBuffers::new(CAPACITY_STEP_BYTES), used_bytes: 0 });
        Arc::new(Self { buffers, idle_limit_bytes, min_retained_bytes, pinning })
    }

    /// Whether the buffers are pinned. Then received bytes should be copied into a buffer of the pool.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinning.is_some()
    }

    /// Returns a buffer for `len` bytes.
    pub(crate) fn acquire(self: &Arc<Self>, len: usize) -> ReceiveBuffer {
        let needed = (len + ALIGNMENT_BYTES).next_multiple_of(CAPACITY_STEP_BYTES);
        let reused = self.lock().idle.take(needed);
        let mut memory = reused.unwrap_or_else(|| self.allocate(needed));
        self.lock().used_bytes += memory.capacity_bytes();
        let start = memory.align();
        ReceiveBuffer { memory, start, len, pool: Arc::downgrade(self) }
    }

    fn allocate(&self, bytes: usize) -> BufferMemory {
        let Some(pinning) = &self.pinning else { return BufferMemory::Heap(Vec::with_capacity(bytes)) };
        match PinnedBuffer::new(&pinning.gpu, bytes) {
            Ok(buffer) => BufferMemory::Pinned(buffer),
            Err(error) => {
                if !pinning.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "cannot pin memory for batches; copies to the GPU take longer; set a smaller buffer");
                }
                BufferMemory::Heap(Vec::with_capacity(bytes))
            }
        }
    }

    fn release(&self, mut memory: BufferMemory) {
        memory.clear();
        let mut buffers = self.lock();
        buffers.used_bytes = buffers.used_bytes.saturating_sub(memory.capacity_bytes());
        let min_idle = self.min_retained_bytes.saturating_sub(buffers.used_bytes);
        buffers.idle.push(memory);
        let evicted = buffers.idle.evict(MAX_IDLE_BUFFERS, self.idle_limit_bytes.max(min_idle));
        // Release the lock first, because freeing memory is slow.
        drop(buffers);
        drop(evicted);
    }

    fn lock(&self) -> MutexGuard<'_, PooledBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a buffer. Bytes are appended to it.
#[derive(Debug)]
enum BufferMemory {
    Heap(Vec<u8>),
    Pinned(PinnedBuffer),
}

impl ReusableBuffer for BufferMemory {
    fn capacity_bytes(&self) -> usize {
        match self {
            Self::Heap(data) => data.capacity(),
            Self::Pinned(data) => data.capacity(),
        }
    }
}

impl BufferMemory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(data) => data,
            Self::Pinned(data) => data.as_slice(),
        }
    }

    /// Appends padding up to the first aligned byte. Returns its offset.
    fn align(&mut self) -> usize {
        match self {
            Self::Heap(data) => {
                let start = data.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
                data.resize(start, 0);
                start
            }
            // Pinned memory is aligned to pages.
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

/// A buffer for received bytes, which are appended to it. The buffer returns to its pool on drop.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    memory: BufferMemory,
    /// Offset of the first aligned byte.
    start: usize,
    len: usize,
    /// The pool, which exists as long as the consumer.
    pool: Weak<ReceivePool>,
}

impl ReceiveBuffer {
    /// Number of appended bytes.
    pub(crate) fn filled(&self) -> usize {
        self.memory.bytes().len() - self.start
    }

    /// Appends bytes. Returns `false` if they exceed the length of the buffer.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        self.filled() + bytes.len() <= self.len && self.memory.append(bytes)
    }

    /// Returns the bytes as shared bytes. The buffer returns to the pool when the last reference is dropped.
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
            pool.release(std::mem::replace(&mut self.memory, BufferMemory::Heap(Vec::new())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = ReceivePool::new(1 << 20);
        let mut buffer = pool.acquire(1000);
        assert!(buffer.append(&[7; 600]) && buffer.append(&[8; 400]));
        assert!(!buffer.append(&[9]), "no byte beyond the length");
        let address = buffer.as_ref().as_ptr() as usize;
        assert_eq!(address % ALIGNMENT_BYTES, 0);
        let bytes = buffer.freeze();
        let part = bytes.slice(990..);
        drop(bytes);
        assert_eq!(&part[..], &[8; 10]);
        assert!(pool.lock().idle.is_empty(), "a view keeps the buffer");
        drop(part);
        assert_eq!(pool.lock().used_bytes, 0);
        let again = pool.acquire(900);
        assert_eq!(again.as_ref().as_ptr() as usize, address);
        assert_eq!(again.filled(), 0);
    }

    #[test]
    fn idle_buffers_are_bounded() {
        let pool = ReceivePool::new(128 << 10);
        let buffers: Vec<ReceiveBuffer> = (0..4).map(|_| pool.acquire(1000)).collect();
        drop(buffers);
        assert_eq!(pool.lock().idle.len(), 2);
    }

    #[test]
    fn the_pool_frees_no_buffer_below_the_minimum() {
        let pool = ReceivePool::with(0, 256 << 10, None);
        let mut buffers: Vec<ReceiveBuffer> = (0..6).map(|_| pool.acquire(1000)).collect();
        let mut idle = Vec::new();
        while buffers.pop().is_some() {
            idle.push(pool.lock().idle.len());
        }
        // Buffers in use count toward the minimum.
        assert_eq!(idle, [0, 0, 1, 2, 3, 4]);
    }
}
