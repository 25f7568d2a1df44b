//! Idle buffers of a pool: returns the best fit, and evicts the oldest buffers above a limit.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;

/// A buffer that a pool reuses.
pub trait ReusableBuffer {
    /// Returns the number of bytes that fit into the buffer without a new allocation.
    fn capacity_bytes(&self) -> usize;
}

impl ReusableBuffer for BytesMut {
    fn capacity_bytes(&self) -> usize {
        self.capacity()
    }
}

/// The unused buffers of a pool. Each operation takes O(log n) per moved buffer.
#[derive(Debug)]
pub struct IdleBuffers<B> {
    /// Buffers by age. The age is the number of previously added buffers.
    buffers: BTreeMap<u64, B>,
    /// Capacity and age of each buffer.
    sizes: BTreeSet<(usize, u64)>,
    added: u64,
    bytes: usize,
    min_bytes: usize,
}

impl<B: ReusableBuffer> IdleBuffers<B> {
    /// Creates an empty list. Requests for fewer than `min_bytes` bytes are treated as requests for `min_bytes` bytes.
    pub fn new(min_bytes: usize) -> Self {
        Self { buffers: BTreeMap::new(), sizes: BTreeSet::new(), added: 0, bytes: 0, min_bytes }
    }

    /// Returns the total capacity of the idle buffers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of idle buffers.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Returns whether there are no idle buffers.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Adds a buffer as the newest buffer.
    pub fn push(&mut self, buffer: B) {
        let capacity = buffer.capacity_bytes();
        self.bytes += capacity;
        self.sizes.insert((capacity, self.added));
        self.buffers.insert(self.added, buffer);
        self.added += 1;
    }

    /// Returns whether a buffer fits a request for `len` bytes without wasting more than half of its capacity.
    pub fn has_fit(&self, len: usize) -> bool {
        self.best_fit(len).is_some()
    }

    /// Removes and returns the smallest buffer that fits a request for `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<B> {
        let (capacity, age) = self.best_fit(len)?;
        self.sizes.remove(&(capacity, age));
        self.bytes -= capacity;
        self.buffers.remove(&age)
    }

    /// Removes and returns the oldest buffers while there are more than `max_count` buffers or more than `max_bytes` in
    /// total. The newest buffers are kept, because they have the sizes that are in use.
    pub fn evict(&mut self, max_count: usize, max_bytes: usize) -> Vec<B> {
        let mut evicted = Vec::new();
        while (self.buffers.len() > max_count || self.bytes > max_bytes)
            && let Some((age, buffer)) = self.buffers.pop_first()
        {
            let capacity = buffer.capacity_bytes();
            self.sizes.remove(&(capacity, age));
            self.bytes -= capacity;
            evicted.push(buffer);
        }
        evicted
    }

    /// Returns the capacity and age of the smallest buffer that fits.
    fn best_fit(&self, len: usize) -> Option<(usize, u64)> {
        let largest = 2 * len.max(self.min_bytes);
        self.sizes.range((len, 0)..).next().copied().filter(|(capacity, _)| *capacity <= largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ReusableBuffer for usize {
        fn capacity_bytes(&self) -> usize {
            *self
        }
    }

    fn idle(sizes: &[usize]) -> IdleBuffers<usize> {
        let mut idle = IdleBuffers::new(100);
        sizes.iter().for_each(|size| idle.push(*size));
        idle
    }

    #[test]
    fn the_smallest_buffer_that_fits_is_taken() {
        let mut idle = idle(&[900, 500, 200, 300]);
        assert_eq!(idle.take(250), Some(300));
        assert_eq!(idle.take(250), Some(500));
        assert_eq!(idle.take(250), None, "900 bytes waste more than half");
        assert!(idle.has_fit(1) && !idle.has_fit(201));
        assert_eq!(idle.take(1), Some(200), "a request for less than the minimum");
        assert_eq!((idle.len(), idle.bytes()), (1, 900));
    }

    #[test]
    fn the_oldest_buffers_are_evicted_above_a_limit() {
        let mut idle = idle(&[1, 2, 3, 4]);
        assert!(idle.evict(4, 10).is_empty());
        assert_eq!(idle.evict(3, 10), [1]);
        assert_eq!(idle.evict(3, 4), [2, 3]);
        assert_eq!((idle.len(), idle.bytes()), (1, 4));
        assert_eq!(idle.evict(0, 4), [4]);
        assert!(idle.is_empty());
    }
}
