//! Buffers that pieces are received into: 64-byte aligned, written once without clearing, used again.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use feedline_proto::batch::ALIGNMENT_BYTES;

/// Capacities are rounded up to this, so that pieces of nearly the same size share buffers.
const ROUND_BYTES: usize = 64 << 10;
/// Buffers that wait for use, beside the limit in bytes.
const IDLE_SLABS: usize = 64;

/// Buffers that wait for use.
#[derive(Debug)]
pub(crate) struct SlabPool {
    idle: Mutex<Vec<Vec<u8>>>,
    idle_limit_bytes: usize,
}

impl SlabPool {
    /// A pool that keeps at most this many bytes for later.
    pub(crate) fn new(idle_limit_bytes: u64) -> Arc<Self> {
        let idle_limit_bytes = usize::try_from(idle_limit_bytes).unwrap_or(usize::MAX);
        Arc::new(Self { idle: Mutex::new(Vec::new()), idle_limit_bytes })
    }

    /// A buffer for `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Slab {
        let needed = (len + ALIGNMENT_BYTES).next_multiple_of(ROUND_BYTES);
        let mut data = self.find(needed).unwrap_or_else(|| Vec::with_capacity(needed));
        let start = data.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
        data.resize(start, 0);
        Slab { data, start, len, pool: Arc::clone(self) }
    }

    /// The smallest idle buffer that fits and is not much too large.
    fn find(&self, needed: usize) -> Option<Vec<u8>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |data: &Vec<u8>| (needed..=2 * needed).contains(&data.capacity());
        let found = idle.iter().enumerate().filter(|(_, data)| fits(data));
        let (place, _) = found.min_by_key(|(_, data)| data.capacity())?;
        Some(idle.swap_remove(place))
    }

    fn put_back(&self, mut data: Vec<u8>) {
        data.clear();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(data);
        // The oldest go first: the sizes in use are the recent ones.
        while idle.len() > IDLE_SLABS || idle.iter().map(Vec::capacity).sum::<usize>() > self.idle_limit_bytes
        {
            idle.remove(0);
        }
    }
}

/// A buffer that is being filled from its start; goes back to its pool when dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    data: Vec<u8>,
    /// First aligned byte.
    start: usize,
    len: usize,
    pool: Arc<SlabPool>,
}

impl Slab {
    /// Bytes written.
    pub(crate) fn filled(&self) -> usize {
        self.data.len() - self.start
    }

    /// Appends bytes; `false` when they would not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        if self.filled() + bytes.len() > self.len {
            return false;
        }
        self.data.extend_from_slice(bytes);
        true
    }

    /// The bytes, shared. The buffer goes back to the pool with the last of them.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        &self.data[self.start..]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_aligned_and_used_again() {
        let pool = SlabPool::new(1 << 20);
        let mut slab = pool.take(1000);
        assert!(slab.append(&[7; 600]) && slab.append(&[8; 400]));
        assert!(!slab.append(&[9]), "no byte more than asked for");
        let address = slab.as_ref().as_ptr() as usize;
        assert_eq!(address % ALIGNMENT_BYTES, 0);
        let bytes = slab.freeze();
        let part = bytes.slice(990..);
        drop(bytes);
        assert_eq!(&part[..], &[8; 10]);
        assert!(pool.idle.lock().unwrap().is_empty(), "a view keeps the slab");
        drop(part);
        let again = pool.take(900);
        assert_eq!(again.as_ref().as_ptr() as usize, address);
        assert_eq!(again.filled(), 0);
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let pool = SlabPool::new(128 << 10);
        let slabs: Vec<Slab> = (0..4).map(|_| pool.take(1000)).collect();
        drop(slabs);
        assert_eq!(pool.idle.lock().unwrap().len(), 2);
    }
}
