//! The pool of buffers for finished batches. Buffers are 64-byte aligned, and return to the pool when the last reader
//! releases them.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::{Buf, Bytes, BytesMut};
use feedline_common::idle_buffers::IdleBuffers;
use feedline_proto::batch::ALIGNMENT_BYTES;
use tokio::sync::Notify;

/// Requests for fewer bytes than this may reuse an idle buffer of up to twice this size.
const MIN_FIT_BYTES: usize = 64 << 10;

/// A pool of buffers, which counts the bytes of all allocated buffers, in use or idle.
#[derive(Debug, Default)]
pub(crate) struct SlabPool {
    state: Mutex<State>,
    /// Notified when a buffer is released, because a group that did not fit the memory budget may fit now.
    pub(crate) returned: Notify,
}

#[derive(Debug)]
struct State {
    idle: IdleBuffers<BytesMut>,
    allocated_bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { idle: IdleBuffers::new(MIN_FIT_BYTES), allocated_bytes: 0 }
    }
}

/// Counts the bytes of a buffer in use against its pool until the reservation is dropped.
#[derive(Debug)]
pub(crate) struct SlabReservation {
    bytes: u64,
    pool: Weak<SlabPool>,
}

impl SlabReservation {
    /// Updates the counted bytes after the buffer has grown.
    fn resize(&mut self, bytes: u64) {
        if let Some(pool) = self.pool.upgrade() {
            let mut state = pool.lock();
            state.allocated_bytes = state.allocated_bytes + bytes - self.bytes;
        }
        self.bytes = bytes;
    }
}

impl Drop for SlabReservation {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.lock().allocated_bytes -= self.bytes;
            pool.returned.notify_one();
        }
    }
}

/// A finished buffer, which returns to its pool when the last reader drops it.
struct Pooled {
    bytes: Bytes,
    reservation: SlabReservation,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.reservation.pool.upgrade()
            && let Ok(slab) = std::mem::take(&mut self.bytes).try_into_mut()
        {
            pool.recycle(slab);
        }
    }
}

impl SlabPool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the pool")
    }

    /// Bytes of all buffers, in use or idle.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.lock().allocated_bytes
    }

    /// Bytes of idle buffers.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.lock().idle.bytes() as u64
    }

    /// Returns a buffer of exactly `len` bytes with unspecified content. Reuses an idle buffer if one fits.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> (BytesMut, SlabReservation) {
        let mut state = self.lock();
        if let Some(mut slab) = state.idle.take(len) {
            drop(state);
            let bytes = slab.capacity() as u64;
            // The resize does not reallocate. It zeroes only the bytes that an earlier, shorter use has truncated.
            slab.resize(len, 0);
            return (slab, SlabReservation { bytes, pool: Arc::downgrade(self) });
        }
        state.allocated_bytes += len as u64;
        drop(state);
        let mut slab = BytesMut::zeroed(len + ALIGNMENT_BYTES);
        let skip = slab.as_ptr().align_offset(ALIGNMENT_BYTES);
        slab.advance(skip.min(ALIGNMENT_BYTES));
        slab.truncate(len);
        (slab, SlabReservation { bytes: len as u64, pool: Arc::downgrade(self) })
    }

    /// Freezes a finished buffer. The buffer returns to the pool when the last reader drops it.
    pub(crate) fn finish(slab: BytesMut, mut reservation: SlabReservation) -> Bytes {
        reservation.resize(slab.capacity() as u64);
        Bytes::from_owner(Pooled { bytes: slab.freeze(), reservation })
    }

    /// Adds a buffer to the idle buffers. The caller drops the buffer's reservation right after this call.
    fn recycle(&self, slab: BytesMut) {
        let mut state = self.lock();
        state.allocated_bytes += slab.capacity() as u64;
        state.idle.push(slab);
    }

    /// Frees idle buffers until a new buffer of `len` bytes fits into `limit` bytes. Frees nothing if an idle buffer
    /// can be reused.
    pub(crate) fn make_room(&self, len: usize, limit: u64) {
        let mut state = self.lock();
        if state.idle.has_fit(len) {
            return;
        }
        let excess = (state.allocated_bytes + len as u64).saturating_sub(limit) as usize;
        let before = state.idle.bytes();
        let evicted = state.idle.evict(usize::MAX, before.saturating_sub(excess));
        state.allocated_bytes -= (before - state.idle.bytes()) as u64;
        drop(state);
        drop(evicted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_reused_after_its_last_reader() {
        let pool = Arc::new(SlabPool::default());
        let (slab, reservation) = pool.take(1000);
        assert_eq!(slab.as_ptr().align_offset(64), 0);
        let first = slab.as_ptr();
        let bytes = SlabPool::finish(slab, reservation);
        let reader = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(pool.idle_bytes(), 0);
        drop(reader);
        assert!(pool.idle_bytes() >= 1000);
        let (again, _reservation) = pool.take(900);
        assert_eq!(again.as_ptr(), first);
        assert_eq!(again.len(), 900);
    }

    #[test]
    fn idle_buffers_are_freed_on_demand() {
        let pool = Arc::new(SlabPool::default());
        let (slab, reservation) = pool.take(1 << 20);
        drop(SlabPool::finish(slab, reservation));
        assert!(pool.allocated_bytes() >= 1 << 20);
        pool.make_room(1 << 10, 1 << 20);
        assert_eq!((pool.idle_bytes(), pool.allocated_bytes()), (0, 0));
    }

    #[test]
    fn a_dropped_buffer_does_not_count() {
        let pool = Arc::new(SlabPool::default());
        drop(pool.take(1 << 20));
        assert_eq!(pool.allocated_bytes(), 0);
    }

    fn idle(pool: &Arc<SlabPool>, bytes: usize) {
        let (slab, reservation) = pool.take(bytes);
        drop(SlabPool::finish(slab, reservation));
    }

    #[test]
    fn the_smallest_idle_buffer_that_fits_is_reused() {
        let pool = Arc::new(SlabPool::default());
        let large = pool.take(300_000);
        idle(&pool, 200_000);
        drop(SlabPool::finish(large.0, large.1));
        let idle_before = pool.idle_bytes();
        let (_slab, reservation) = pool.take(150_000);
        assert!((200_000..300_000).contains(&reservation.bytes), "{}", reservation.bytes);
        assert_eq!(pool.idle_bytes(), idle_before - reservation.bytes);
        let allocated = pool.allocated_bytes();
        let (_small, _reservation) = pool.take(100);
        assert_eq!(pool.allocated_bytes(), allocated + 100, "a small batch does not occupy a large buffer");
    }

    #[test]
    fn a_buffer_that_grew_counts_with_its_new_size() {
        let pool = Arc::new(SlabPool::default());
        let (mut slab, reservation) = pool.take(1000);
        assert_eq!(pool.allocated_bytes(), 1000);
        slab.resize(100_000, 0);
        let bytes = SlabPool::finish(slab, reservation);
        assert!(pool.allocated_bytes() >= 100_000);
        drop(bytes);
        assert_eq!(pool.allocated_bytes(), pool.idle_bytes());
    }

    #[test]
    fn room_is_made_only_if_it_is_needed() {
        let pool = Arc::new(SlabPool::default());
        idle(&pool, 100_000);
        pool.make_room(90_000, 0);
        assert!(pool.idle_bytes() >= 100_000, "the idle buffer fits");
        pool.make_room(1000, 1 << 20);
        assert!(pool.idle_bytes() >= 100_000, "there is room for another buffer");
        pool.make_room(1 << 20, pool.allocated_bytes() + (1 << 20));
        assert!(pool.idle_bytes() >= 100_000, "the new buffer fits exactly");
        pool.make_room(1 << 20, pool.allocated_bytes() + (1 << 20) - 1);
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[tokio::test]
    async fn a_released_buffer_is_announced() {
        let pool = Arc::new(SlabPool::default());
        let (slab, reservation) = pool.take(10);
        let bytes = SlabPool::finish(slab, reservation);
        assert!(futures::FutureExt::now_or_never(pool.returned.notified()).is_none());
        drop(bytes);
        assert!(futures::FutureExt::now_or_never(pool.returned.notified()).is_some());
    }
}
