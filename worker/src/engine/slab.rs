//! Buffers of finished batches: 64-byte aligned, used again once every reader has let go of them.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::{Buf, Bytes, BytesMut};

const ALIGNMENT: usize = 64;

/// Hands out buffers and takes them back. Counts every byte that it has allocated, in use or idle.
#[derive(Debug, Default)]
pub(crate) struct SlabPool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<BytesMut>,
    allocated_bytes: u64,
    idle_bytes: u64,
}

/// A finished buffer; goes back to its pool with the last reader.
struct Pooled {
    bytes: Bytes,
    capacity: u64,
    pool: Weak<SlabPool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        match std::mem::take(&mut self.bytes).try_into_mut() {
            Ok(slab) => pool.put(slab, self.capacity),
            Err(_) => pool.forget(self.capacity),
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
    pub(crate) fn take(&self, len: usize) -> BytesMut {
        let mut state = self.lock();
        let fits = |slab: &BytesMut| slab.capacity() >= len && slab.capacity() / 2 <= len.max(1 << 16);
        let best = (0..state.idle.len())
            .filter(|&place| fits(&state.idle[place]))
            .min_by_key(|&place| state.idle[place].capacity());
        if let Some(place) = best {
            let mut slab = state.idle.swap_remove(place);
            state.idle_bytes -= slab.capacity() as u64;
            drop(state);
            // Within the capacity, and no page of it is new: only what a shorter use left out is zeroed.
            slab.resize(len, 0);
            return slab;
        }
        state.allocated_bytes += len as u64;
        drop(state);
        let mut slab = BytesMut::zeroed(len + ALIGNMENT);
        let skip = slab.as_ptr().align_offset(ALIGNMENT);
        slab.advance(skip.min(ALIGNMENT));
        slab.truncate(len);
        slab
    }

    /// Makes a finished buffer readable; it comes back to the pool with its last reader. `taken` is the length it was
    /// taken with.
    pub(crate) fn finish(self: &Arc<Self>, slab: BytesMut, taken: usize) -> Bytes {
        let mut capacity = taken as u64;
        let present = slab.capacity() as u64;
        if present > capacity {
            // It had to grow: the columns of varying size were larger than any before.
            self.lock().allocated_bytes += present - capacity;
            capacity = present;
        }
        Bytes::from_owner(Pooled { bytes: slab.freeze(), capacity, pool: Arc::downgrade(self) })
    }

    fn put(&self, slab: BytesMut, capacity: u64) {
        let mut state = self.lock();
        let present = slab.capacity() as u64;
        state.allocated_bytes = (state.allocated_bytes + present).saturating_sub(capacity);
        state.idle_bytes += present;
        state.idle.push(slab);
    }

    fn forget(&self, capacity: u64) {
        let mut state = self.lock();
        state.allocated_bytes = state.allocated_bytes.saturating_sub(capacity);
    }

    /// Frees idle buffers until at most `limit` bytes are allocated.
    pub(crate) fn shrink_to(&self, limit: u64) {
        let mut state = self.lock();
        while state.allocated_bytes > limit
            && let Some(slab) = state.idle.pop()
        {
            let bytes = slab.capacity() as u64;
            state.allocated_bytes = state.allocated_bytes.saturating_sub(bytes);
            state.idle_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_used_again_when_its_readers_are_gone() {
        let pool = Arc::new(SlabPool::default());
        let slab = pool.take(1000);
        assert_eq!(slab.as_ptr().align_offset(64), 0);
        let first = slab.as_ptr();
        let bytes = pool.finish(slab, 1000);
        let reader = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(pool.idle_bytes(), 0);
        drop(reader);
        assert!(pool.idle_bytes() >= 1000);
        let again = pool.take(900);
        assert_eq!(again.as_ptr(), first);
        assert_eq!(again.len(), 900);
    }

    #[test]
    fn idle_buffers_are_freed_on_demand() {
        let pool = Arc::new(SlabPool::default());
        let slab = pool.take(1 << 20);
        drop(pool.finish(slab, 1 << 20));
        assert!(pool.allocated_bytes() >= 1 << 20);
        pool.shrink_to(0);
        assert_eq!((pool.idle_bytes(), pool.allocated_bytes()), (0, 0));
    }
}
