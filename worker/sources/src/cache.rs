//! Caches one value per shard, such as a footer or header, which all blocks of the shard need, or one value per part of a shard. All
//! caches of a worker share memory: the least recently used value of all caches is removed first.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feedline_data::manifest::ShardRef;
use tokio::sync::OnceCell;

use crate::error::SourceError;
use crate::object::Object;
use crate::read_memory::ReadMemory;

/// Maximum number of cached values. Footers are small, and consecutive reads use few shards.
const CAPACITY_SHARDS: usize = 256;
/// Maximum total size in bytes of the values of all caches. A larger value is cached alone.
const CAPACITY_BYTES: u64 = 256 << 20;

/// A value with its size in memory.
pub(crate) trait CachedSize {
    /// The size of the parts that grow with the shard.
    fn held_bytes(&self) -> usize;
}

/// The memory of the caches of all readers of a worker. Counts towards the memory budget of the worker.
#[derive(Clone)]
pub(crate) struct ShardCacheMemory {
    /// Maximum size of all caches. A larger value is cached alone.
    limit_bytes: u64,
    /// The account of the memory budget.
    used_bytes: Arc<AtomicU64>,
    /// The number of uses of all caches, which orders them.
    uses: Arc<AtomicU64>,
    caches: Arc<Mutex<Vec<Weak<dyn Evict>>>>,
}

impl ShardCacheMemory {
    pub(crate) fn new(memory: &ReadMemory) -> Self {
        Self {
            limit_bytes: memory.limits.shard_cache_bytes().min(CAPACITY_BYTES),
            used_bytes: Arc::clone(&memory.used_bytes),
            uses: Arc::default(),
            caches: Arc::default(),
        }
    }

    /// Maximum size of all caches.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Removes the least recently used values of all caches until the others fit. The most recently used value stays.
    fn evict(&self) {
        let mut registered = lock(&self.caches);
        registered.retain(|cache| cache.strong_count() > 0);
        let caches: Vec<Arc<dyn Evict>> = registered.iter().filter_map(Weak::upgrade).collect();
        let mut total: u64 = caches.iter().map(|cache| cache.bytes()).sum();
        while total > self.limit_bytes {
            let mut oldest: Vec<(u64, &Arc<dyn Evict>)> =
                caches.iter().filter_map(|cache| Some((cache.oldest()?, cache))).collect();
            oldest.sort_by_key(|(used_at, _)| *used_at);
            let is_last = match &oldest[..] {
                [] => true,
                [(_, cache)] => cache.loaded() == 1,
                _ => false,
            };
            if is_last {
                return;
            }
            let removed = oldest[0].1.remove_oldest();
            self.used_bytes.fetch_sub(removed, Ordering::Relaxed);
            total -= removed.min(total);
        }
    }
}

impl std::fmt::Debug for ShardCacheMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardCacheMemory").field("limit_bytes", &self.limit_bytes).finish_non_exhaustive()
    }
}

/// A cache of any type of value.
trait Evict: Send + Sync {
    /// The size of the loaded values.
    fn bytes(&self) -> u64;

    /// The number of loaded values.
    fn loaded(&self) -> usize;

    /// The last use of the least recently used value that is loaded.
    fn oldest(&self) -> Option<u64>;

    /// Removes that value. Returns its size.
    fn remove_oldest(&self) -> u64;
}

type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// A cache with one value per shard, or per part of a shard, for the most recently used ones.
pub(crate) struct ShardCache<T> {
    memory: ShardCacheMemory,
    cells: Arc<Mutex<Cells<T>>>,
}

struct Cells<T> {
    /// The shards in order of use, the least recently used first.
    in_order: VecDeque<Entry<T>>,
    /// The size of the values that are charged.
    bytes: u64,
}

struct Entry<T> {
    shard: ShardRef,
    /// The part of the shard, such as a row group. 0 for a value of the whole shard.
    part: usize,
    cell: Cell<T>,
    used_at: u64,
    /// The size of the value, once it is charged.
    bytes: Option<u64>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Cells<T> {
    fn remove(&mut self, position: usize) -> Option<Entry<T>> {
        let entry = self.in_order.remove(position)?;
        self.bytes -= entry.bytes.unwrap_or_default();
        Some(entry)
    }

    fn oldest(&self) -> Option<usize> {
        self.in_order.iter().position(|entry| entry.bytes.is_some())
    }

    /// An entry that makes room for another one: one without a value, because its load failed or was cancelled, or else the least
    /// recently used value. A shard that is still being loaded stays, so that it is loaded once.
    fn removable(&self) -> Option<usize> {
        // Each call that loads the value holds a reference, and gets it under the lock.
        let is_abandoned = |entry: &Entry<T>| entry.bytes.is_none() && Arc::strong_count(&entry.cell) == 1;
        self.in_order.iter().position(is_abandoned).or_else(|| self.oldest())
    }
}

impl<T: Send + Sync> Evict for Mutex<Cells<T>> {
    fn bytes(&self) -> u64 {
        lock(self).bytes
    }

    fn loaded(&self) -> usize {
        lock(self).in_order.iter().filter(|entry| entry.bytes.is_some()).count()
    }

    fn oldest(&self) -> Option<u64> {
        let cells = lock(self);
        Some(cells.in_order[cells.oldest()?].used_at)
    }

    fn remove_oldest(&self) -> u64 {
        let mut cells = lock(self);
        let removed = cells.oldest().and_then(|position| cells.remove(position));
        removed.and_then(|entry| entry.bytes).unwrap_or_default()
    }
}

impl<T: Send + Sync + 'static> ShardCache<T> {
    pub(crate) fn new(memory: &ShardCacheMemory) -> Self {
        let cells = Arc::new(Mutex::new(Cells { in_order: VecDeque::new(), bytes: 0 }));
        let evict: Weak<Mutex<Cells<T>>> = Arc::downgrade(&cells);
        lock(&memory.caches).push(evict);
        Self { memory: memory.clone(), cells }
    }
}

impl<T> Drop for ShardCache<T> {
    fn drop(&mut self) {
        let mut cells = lock(&self.cells);
        cells.in_order.clear();
        self.memory.used_bytes.fetch_sub(std::mem::take(&mut cells.bytes), Ordering::Relaxed);
    }
}

impl<T: CachedSize> ShardCache<T> {
    /// Returns the value of an object's shard. Concurrent calls run `load` once. A call with an object whose bytes are hashed always
    /// runs it, because the digest must not depend on earlier reads.
    pub(crate) async fn get<F>(
        &self,
        object: &Object,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<T>, SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        if !object.is_hashed() {
            return self.get_shared(object.shard(), 0, load).await;
        }
        let value = Arc::new(load().await?);
        let cell = self.cell(object.shard(), 0);
        // Another call may have loaded the same value, or loads it.
        if cell.set(Arc::clone(&value)).is_ok() {
            self.charge(&cell, value.held_bytes() as u64);
            self.memory.evict();
        }
        Ok(value)
    }

    /// Returns the value of a part of a shard, which `load` creates at once.
    pub(crate) fn get_part(&self, shard: &ShardRef, part: usize, load: impl FnOnce() -> T) -> Arc<T> {
        let cell = self.cell(shard, part);
        if let Some(value) = cell.get() {
            return Arc::clone(value);
        }
        let value = Arc::new(load());
        if cell.set(Arc::clone(&value)).is_ok() {
            self.charge(&cell, value.held_bytes() as u64);
            self.memory.evict();
            return value;
        }
        cell.get().map_or(value, Arc::clone)
    }

    /// Counts the size of a value again, which has grown. A value that is not cached is not counted.
    pub(crate) fn recharge(&self, value: &Arc<T>) {
        let bytes = value.held_bytes() as u64;
        let mut cells = lock(&self.cells);
        let has_grown = |entry: &&mut Entry<T>| {
            entry.bytes.is_some_and(|counted| counted < bytes)
                && entry.cell.get().is_some_and(|cached| Arc::ptr_eq(cached, value))
        };
        let Some(entry) = cells.in_order.iter_mut().rev().find(has_grown) else { return };
        let added = bytes - entry.bytes.replace(bytes).unwrap_or(bytes);
        cells.bytes += added;
        self.memory.used_bytes.fetch_add(added, Ordering::Relaxed);
        drop(cells);
        self.memory.evict();
    }

    async fn get_shared<F>(
        &self,
        shard: &ShardRef,
        part: usize,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<T>, SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        let cell = self.cell(shard, part);
        let is_loaded = cell.initialized();
        let load = || async { Ok(Arc::new(load().await?)) };
        let value = cell.get_or_try_init(load).await.cloned();
        if !is_loaded && let Ok(value) = &value {
            self.charge(&cell, value.held_bytes() as u64);
            self.memory.evict();
        }
        value
    }

    /// Counts the size of a loaded value, unless another call has counted it or it was removed meanwhile.
    fn charge(&self, cell: &Cell<T>, bytes: u64) {
        let mut cells = lock(&self.cells);
        let is_new = |entry: &&mut Entry<T>| Arc::ptr_eq(&entry.cell, cell) && entry.bytes.is_none();
        let Some(entry) = cells.in_order.iter_mut().rev().find(is_new) else { return };
        entry.bytes = Some(bytes);
        cells.bytes += bytes;
        self.memory.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn cell(&self, shard: &ShardRef, part: usize) -> Cell<T> {
        let used_at = self.memory.uses.fetch_add(1, Ordering::Relaxed);
        let mut cells = lock(&self.cells);
        let position = cells.in_order.iter().rposition(|entry| entry.part == part && entry.shard == *shard);
        if position.is_none() && cells.in_order.len() >= CAPACITY_SHARDS {
            let removed = cells.removable().and_then(|removable| cells.remove(removable));
            let bytes = removed.and_then(|entry| entry.bytes).unwrap_or_default();
            self.memory.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        let new = || Entry { shard: shard.clone(), part, cell: Cell::default(), used_at, bytes: None };
        let mut entry = position.and_then(|position| cells.in_order.remove(position)).unwrap_or_else(new);
        entry.used_at = used_at;
        let cell = Arc::clone(&entry.cell);
        cells.in_order.push_back(entry);
        cell
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::memory::MemoryLimits;
    use futures::FutureExt;

    use super::*;

    struct Value(usize);

    impl CachedSize for Value {
        fn held_bytes(&self) -> usize {
            self.0
        }
    }

    fn shard(number: usize) -> ShardRef {
        ShardRef { url: number.to_string(), ..ShardRef::default() }
    }

    fn memory(budget_bytes: u64) -> ShardCacheMemory {
        let limits = MemoryLimits::new(budget_bytes);
        ShardCacheMemory::new(&ReadMemory { limits, used_bytes: Arc::default() })
    }

    async fn load(cache: &ShardCache<Value>, sizes: &[usize]) {
        for (number, &size) in sizes.iter().enumerate() {
            cache.get_shared(&shard(number), 0, || async { Ok(Value(size)) }).await.unwrap();
        }
    }

    /// Loads values of these sizes, and returns the shards that are still cached.
    async fn cached(sizes: &[usize]) -> Vec<usize> {
        let cache = ShardCache::new(&memory(16 << 30));
        load(&cache, sizes).await;
        shards(&cache)
    }

    fn shards(cache: &ShardCache<Value>) -> Vec<usize> {
        lock(&cache.cells).in_order.iter().map(|entry| entry.shard.url.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn the_number_and_the_size_of_values_are_limited() {
        assert_eq!(cached(&[1; 300]).await, (44..300).collect::<Vec<_>>());
        let capacity = CAPACITY_BYTES as usize;
        let half = capacity / 2;
        assert_eq!(cached(&[1, half, half, 0]).await, [1, 2, 3]);
        assert_eq!(cached(&[1, half, half, 1]).await, [2, 3]);
        assert_eq!(cached(&[1, capacity + 1]).await, [1], "a large value is cached alone");
    }

    #[tokio::test]
    async fn all_caches_together_use_a_part_of_the_memory_budget() {
        let memory = memory(8_000);
        let used = || memory.used_bytes.load(Ordering::Relaxed);
        let (first, second) = (ShardCache::new(&memory), ShardCache::new(&memory));
        load(&first, &[300, 300, 300]).await;
        assert_eq!(used(), 900);
        // An idle cache does not keep another one empty.
        load(&second, &[50, 100, 350]).await;
        assert_eq!((shards(&first), shards(&second), used()), (vec![2], vec![0, 1, 2], 800));
        load(&first, &[300, 300]).await;
        assert_eq!((shards(&first), shards(&second), used()), (vec![0, 1], vec![2], 950));
        load(&second, &[2_000]).await;
        assert_eq!((shards(&first), shards(&second), used()), (vec![], vec![0], 2_000), "cached alone");
        load(&first, &[10]).await;
        assert_eq!((shards(&first), shards(&second), used()), (vec![0], vec![], 10));
        drop(first);
        assert_eq!(used(), 0);
        load(&second, &[950]).await;
        drop(second);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn a_value_that_grows_is_counted_again() {
        struct Growing(AtomicU64);
        impl CachedSize for Growing {
            fn held_bytes(&self) -> usize {
                self.0.load(Ordering::Relaxed) as usize
            }
        }
        let memory = memory(8_000);
        let used = || memory.used_bytes.load(Ordering::Relaxed);
        let cache = ShardCache::new(&memory);
        let get = |part| cache.get_part(&shard(0), part, || Growing(AtomicU64::new(300)));
        let (first, second) = (get(1), get(2));
        assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &get(1)));
        assert_eq!(used(), 600);
        first.0.store(700, Ordering::Relaxed);
        cache.recharge(&first);
        cache.recharge(&first);
        assert_eq!(used(), 1_000);
        first.0.store(800, Ordering::Relaxed);
        cache.recharge(&first);
        assert_eq!(used(), 800, "the other value was evicted");
        second.0.store(900, Ordering::Relaxed);
        cache.recharge(&second);
        assert_eq!(used(), 800, "it is no longer cached");
        drop(cache);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn loads_that_failed_or_were_cancelled_do_not_displace_values() {
        let cache = ShardCache::new(&memory(16 << 30));
        load(&cache, &[1, 2]).await;
        let fail = || async { Err(SourceError::NotFound { url: String::new() }) };
        for number in 2..300 {
            assert!(cache.get_shared(&shard(number), 0, fail).await.is_err());
        }
        assert_eq!(shards(&cache).len(), CAPACITY_SHARDS);
        assert_eq!(shards(&cache)[..2], [0, 1]);
        for number in 300..600 {
            assert!(cache.get_shared(&shard(number), 0, std::future::pending).now_or_never().is_none());
        }
        assert_eq!(shards(&cache).len(), CAPACITY_SHARDS);
        assert_eq!(shards(&cache)[..2], [0, 1]);
    }

    #[tokio::test]
    async fn a_value_that_is_being_loaded_is_loaded_once() {
        let cache = ShardCache::new(&memory(16 << 30));
        let (loaded, is_loaded) = tokio::sync::oneshot::channel();
        let first = shard(0);
        let slow = cache.get_shared(&first, 0, || async {
            is_loaded.await.unwrap();
            Ok(Value(1))
        });
        let others = async {
            for number in 1..=CAPACITY_SHARDS {
                cache.get_shared(&shard(number), 0, || async { Ok(Value(100)) }).await.unwrap();
            }
            loaded.send(()).unwrap();
        };
        let again = cache.get_shared(&first, 0, || async { panic!("the first call loads it") });
        let (slow, (), again) = tokio::join!(slow, others, again);
        assert!(Arc::ptr_eq(&slow.unwrap(), &again.unwrap()));
    }
}
