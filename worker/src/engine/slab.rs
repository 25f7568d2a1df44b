//! Buffers of finished batches: 64-byte aligned, used again once every reader has let go of them.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::{Buf, Bytes, BytesMut};
use feedline_proto::batch::ALIGNMENT_BYTES;
use tokio::sync::Notify;

/// Hands out buffers and takes them back. Counts every byte that it has allocated, in use or idle.
#[derive(Debug, Default)]
pub(crate) struct SlabPool {
    state: Mutex<State>,
    /// Woken when a buffer is no longer in use: what did not fit the budget may fit now.
    pub(crate) returned: Notify,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<BytesMut>,
    allocated_bytes: u64,
    idle_bytes: u64,
}

/// A buffer in use, as the pool counts it.
#[derive(Debug)]
pub(crate) struct SlabReservation {
    bytes: u64,
    pool: Weak<SlabPool>,
}

impl SlabReservation {
    /// The buffer grew or proved larger than asked for.
    fn set(&mut self, bytes: u64) {
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

/// A finished buffer; goes back to its pool with the last reader.
struct Pooled {
    bytes: Bytes,
    counted: SlabReservation,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.counted.pool.upgrade()
            && let Ok(slab) = std::mem::take(&mut self.bytes).try_into_mut()
        {
            pool.put(slab);
        }
    }
}

impl SlabPool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the pool")
    }

    /// Bytes allocated, in use or idle.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.lock().allocated_bytes
    }

    /// Bytes allocated and idle.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.lock().idle_bytes
    }

    /// A buffer of exactly `len` bytes with unspecified content, from the idle ones if one fits well.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> (BytesMut, SlabReservation) {
        let mut state = self.lock();
        let best = (0..state.idle.len())
            .filter(|&place| fits(&state.idle[place], len))
            .min_by_key(|&place| state.idle[place].capacity());
        if let Some(place) = best {
            let mut slab = state.idle.swap_remove(place);
            let bytes = slab.capacity() as u64;
            state.idle_bytes -= bytes;
            drop(state);
            // Within the capacity, and no page of it is new: only what a shorter use left out is zeroed.
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

    /// Makes a finished buffer readable; it comes back to the pool with its last reader.
    pub(crate) fn finish(slab: BytesMut, mut counted: SlabReservation) -> Bytes {
        counted.set(slab.capacity() as u64);
        Bytes::from_owner(Pooled { bytes: slab.freeze(), counted })
    }

    /// Keeps a buffer for the next taker. It stays counted: its reader's count is given up right after this.
    fn put(&self, slab: BytesMut) {
        let mut state = self.lock();
        let bytes = slab.capacity() as u64;
        state.allocated_bytes += bytes;
        state.idle_bytes += bytes;
        state.idle.push(slab);
    }

    /// Frees idle buffers until a buffer of `len` bytes fits into `limit` bytes, unless an idle one can be used.
    pub(crate) fn make_room(&self, len: usize, limit: u64) {
        let mut state = self.lock();
        if state.idle.iter().any(|slab| fits(slab, len)) {
            return;
        }
        while state.allocated_bytes + len as u64 > limit
            && let Some(slab) = state.idle.pop()
        {
            let bytes = slab.capacity() as u64;
            state.allocated_bytes -= bytes;
            state.idle_bytes -= bytes;
        }
    }
}

/// Whether an idle buffer serves for `len` bytes without wasting more than as much again.
fn fits(slab: &BytesMut, len: usize) -> bool {
    slab.capacity() >= len && slab.capacity() / 2 <= len.max(1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_used_again_when_its_readers_are_gone() {
        let pool = Arc::new(SlabPool::default());
        let (slab, counted) = pool.take(1000);
        assert_eq!(slab.as_ptr().align_offset(64), 0);
        let first = slab.as_ptr();
        let bytes = SlabPool::finish(slab, counted);
        let reader = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(pool.idle_bytes(), 0);
        drop(reader);
        assert!(pool.idle_bytes() >= 1000);
        let (again, _counted) = pool.take(900);
        assert_eq!(again.as_ptr(), first);
        assert_eq!(again.len(), 900);
    }

    #[test]
    fn idle_buffers_are_freed_on_demand() {
        let pool = Arc::new(SlabPool::default());
        let (slab, counted) = pool.take(1 << 20);
        drop(SlabPool::finish(slab, counted));
        assert!(pool.allocated_bytes() >= 1 << 20);
        pool.make_room(1 << 10, 1 << 20);
        assert_eq!((pool.idle_bytes(), pool.allocated_bytes()), (0, 0));
    }

    #[test]
    fn a_buffer_that_is_given_up_is_no_longer_counted() {
        let pool = Arc::new(SlabPool::default());
        drop(pool.take(1 << 20));
        assert_eq!(pool.allocated_bytes(), 0);
    }
}
