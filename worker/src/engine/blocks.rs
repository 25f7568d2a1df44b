//! The cache of blocks with small rows, which neighbouring splits share. Its capacity in bytes is shared by all jobs.
//! It first evicts blocks whose rows were all used, which only the next pass needs, and then the least recently used blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::ids::JobId;
use feedline_sources::{BlockRows, SourceError};
use tokio::sync::OnceCell;

/// Identifies a block of a job's dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockKey {
    pub(crate) job: JobId,
    pub(crate) shard: u32,
    pub(crate) block: u64,
}

type Cell = Arc<OnceCell<Arc<BlockRows>>>;

pub(crate) struct BlockCache {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<BlockKey, Entry>,
    held_bytes: u64,
    clock: u64,
    /// The cached blocks that the current pass still needs, by the time of their last use.
    needed: BTreeMap<u64, BlockKey>,
    /// The cached blocks whose rows were all used, by the time of their last use.
    used_up: BTreeMap<u64, BlockKey>,
    /// The longest time after which a pass has used a block again that an earlier pass had used up.
    max_reuse_time: u64,
}

struct Entry {
    cell: Cell,
    /// The time of the last use, which no other block has.
    used: u64,
    /// 0 until the block is read.
    bytes: u64,
    rows: u32,
    /// Number of rows that the current pass has not used yet. A pass uses each row once. 0 between two passes.
    unused_rows: u32,
}

impl State {
    /// The list that contains a block after it was read.
    fn list_of(&mut self, is_needed: bool) -> &mut BTreeMap<u64, BlockKey> {
        if is_needed { &mut self.needed } else { &mut self.used_up }
    }

    fn remove(&mut self, key: BlockKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if entry.bytes > 0 {
            self.held_bytes -= entry.bytes;
            self.list_of(entry.unused_rows > 0).remove(&entry.used);
        }
        Some(entry)
    }

    /// Returns the used-up block that is evicted first. The next pass reads blocks in a similar order, so it needs the last one last.
    /// One that was not used for much longer than others belongs to splits of other workers now.
    fn first_used_up(&self) -> Option<BlockKey> {
        let (used, oldest) = self.used_up.first_key_value()?;
        let is_abandoned = self.max_reuse_time > 0 && self.clock - used > 2 * self.max_reuse_time;
        if is_abandoned { Some(*oldest) } else { self.used_up.last_key_value().map(|(_, key)| *key) }
    }
}

/// A request for a block. If the read fails or is cancelled, the last request for the block removes its empty entry.
struct BlockLookup<'a> {
    cache: &'a BlockCache,
    key: BlockKey,
    cell: Cell,
}

impl Drop for BlockLookup<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        // The cache and this request hold the only two references.
        let is_last = Arc::strong_count(&self.cell) == 2;
        if is_last && state.entries.get(&self.key).is_some_and(|entry| entry.bytes == 0) {
            state.entries.remove(&self.key);
        }
    }
}

impl BlockCache {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the cache")
    }

    /// Bytes of the cached blocks.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Evicts the blocks of jobs for which `is_retained` returns false.
    pub(crate) fn retain_jobs(&self, is_retained: impl Fn(JobId) -> bool) {
        let mut state = self.lock();
        let evicted: Vec<BlockKey> =
            state.entries.keys().filter(|key| !is_retained(key.job)).copied().collect();
        for key in evicted {
            state.remove(key);
            state.max_reuse_time = 0;
        }
    }

    /// Evicts blocks that only the next pass needs, at least `bytes` of them if there are enough. Returns whether it has evicted any.
    pub(crate) fn free_used_up(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let target = state.held_bytes.saturating_sub(bytes);
        let before = state.held_bytes;
        while state.held_bytes > target
            && let Some(key) = state.first_used_up()
        {
            state.remove(key);
        }
        state.held_bytes < before
    }

    /// Returns a block of `block_rows` rows from the cache, or reads it with `read` if it is not cached. Concurrent requests
    /// for a block share one read.
    pub(crate) async fn get_or_read(
        &self,
        key: BlockKey,
        (used_rows, block_rows): (u32, u32),
        read: impl Future<Output = Result<BlockRows, SourceError>>,
    ) -> Result<Arc<BlockRows>, SourceError> {
        let lookup = BlockLookup { cache: self, key, cell: self.touch(key, block_rows) };
        let rows = lookup.cell.get_or_try_init(|| async { read.await.map(Arc::new) }).await?;
        self.record_use(key, used_rows, rows.held_bytes as u64);
        Ok(Arc::clone(rows))
    }

    fn touch(&self, key: BlockKey, block_rows: u32) -> Cell {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let Some(entry) = state.entries.get_mut(&key) else {
            let entry =
                Entry { cell: Cell::default(), used, bytes: 0, rows: block_rows, unused_rows: block_rows };
            let cell = Arc::clone(&entry.cell);
            state.entries.insert(key, entry);
            return cell;
        };
        let before = std::mem::replace(&mut entry.used, used);
        let (cell, is_needed, is_read) = (Arc::clone(&entry.cell), entry.unused_rows > 0, entry.bytes > 0);
        if is_read {
            state.list_of(is_needed).remove(&before);
            state.list_of(is_needed).insert(used, key);
        }
        if !is_needed {
            state.max_reuse_time = state.max_reuse_time.max(used - before);
        }
        cell
    }

    fn record_use(&self, key: BlockKey, used_rows: u32, bytes: u64) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&key) else { return };
        let was_needed = entry.unused_rows > 0;
        let unused_rows = if was_needed { entry.unused_rows } else { entry.rows };
        entry.unused_rows = unused_rows.saturating_sub(used_rows);
        let (used, is_needed, is_new) = (entry.used, entry.unused_rows > 0, entry.bytes == 0);
        if is_new {
            entry.bytes = bytes.max(1);
            state.held_bytes += bytes.max(1);
        } else if is_needed != was_needed {
            state.list_of(was_needed).remove(&used);
        }
        state.list_of(is_needed).insert(used, key);
        while state.held_bytes > self.capacity_bytes && state.entries.len() > 1 {
            let oldest_needed = state.needed.first_key_value().map(|(_, key)| *key);
            let Some(first) = state.first_used_up().or(oldest_needed) else { break };
            state.remove(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use arrow::array::RecordBatch;
    use arrow::datatypes::Schema;

    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { job: JobId(1), shard: 0, block }
    }

    fn rows(held_bytes: usize) -> BlockRows {
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        BlockRows {
            batch,
            failures: Vec::new(),
            absent: Vec::new(),
            lost: Vec::new(),
            newest_ms: None,
            held_bytes,
            store_bytes: 0,
            store_requests: 0,
            store_wait: Duration::ZERO,
            blocking_bytes: 0,
        }
    }

    #[tokio::test]
    async fn a_block_is_read_once_and_the_least_recently_used_is_evicted() {
        let cache = BlockCache::new(100);
        let reads = AtomicUsize::new(0);
        let get = |block: u64| {
            cache.get_or_read(key(block), (1, 10), async {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok(rows(40))
            })
        };
        for block in [0, 1, 0, 2, 0, 1] {
            get(block).await.expect("the read succeeds");
            assert!(cache.held_bytes() <= 100);
        }
        // Block 1 was evicted for block 2, so it is the only block that was read twice.
        assert_eq!(reads.load(Ordering::Relaxed), 4);
        cache.retain_jobs(|job| job == JobId(1));
        assert_eq!(cache.held_bytes(), 80);
        cache.retain_jobs(|job| job != JobId(1));
        assert_eq!(cache.held_bytes(), 0);
    }

    #[tokio::test]
    async fn blocks_whose_rows_were_all_used_remain_until_their_memory_is_needed() {
        let cache = BlockCache::new(100);
        let reads = AtomicUsize::new(0);
        let mut read_blocks = Vec::new();
        // Block 1 is never used up. Block 0 is used up once in each of three passes.
        for (block, used_rows) in
            [(0, 3), (0, 7), (1, 5), (0, 3), (2, 10), (0, 7), (1, 1), (3, 10), (0, 10), (1, 1)]
        {
            let before = reads.load(Ordering::Relaxed);
            let read = cache.get_or_read(key(block), (used_rows, 10), async {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok(rows(40))
            });
            read.await.expect("the read succeeds");
            if reads.load(Ordering::Relaxed) > before {
                read_blocks.push(block);
            }
        }
        // Blocks 2 and 3 exceed the capacity, and are evicted at once, because they were used up last.
        assert_eq!(read_blocks, [0, 1, 2, 3]);
        assert_eq!(cache.held_bytes(), 80);
        assert!(cache.free_used_up(1));
        assert_eq!(cache.held_bytes(), 40);
        assert!(!cache.free_used_up(1), "the pass still needs the other block");
    }

    /// Reads whole blocks, each with a tenth of the capacity. Returns which were not cached.
    async fn missed(cache: &BlockCache, blocks: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let missed = Mutex::new(Vec::new());
        for block in blocks {
            let read = async {
                missed.lock().unwrap().push(block);
                Ok(rows(10))
            };
            cache.get_or_read(key(block), (5, 5), read).await.expect("the read succeeds");
        }
        missed.into_inner().unwrap()
    }

    #[tokio::test]
    async fn passes_over_more_blocks_than_fit_find_most_of_those_that_fit() {
        let cache = BlockCache::new(100);
        assert_eq!(missed(&cache, 0..15).await.len(), 15);
        for _ in 0..3 {
            assert!(missed(&cache, 0..15).await.len() <= 6);
        }
    }

    #[tokio::test]
    async fn blocks_that_other_workers_read_now_leave() {
        let cache = BlockCache::new(100);
        for _ in 0..2 {
            missed(&cache, 0..10).await;
        }
        // From now on, this worker reads other blocks.
        for _ in 0..5 {
            missed(&cache, 20..30).await;
        }
        assert_eq!(missed(&cache, 20..30).await, Vec::<u64>::new());
    }

    #[tokio::test]
    async fn a_block_that_arrives_after_its_job_has_ended_is_not_cached() {
        let cache = BlockCache::new(100);
        let read = cache.get_or_read(key(0), (1, 10), async {
            cache.retain_jobs(|_| false);
            Ok(rows(40))
        });
        read.await.expect("the read succeeds");
        assert_eq!(cache.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_failed_or_cancelled_read_leaves_no_entry() {
        let cache = BlockCache::new(100);
        let lost = || SourceError::NotFound { url: "file:///d/a".to_owned() };
        cache.get_or_read(key(0), (1, 10), async { Err(lost()) }).await.expect_err("the read fails");
        let cancelled = cache.get_or_read(key(1), (1, 10), std::future::pending());
        assert!(futures::FutureExt::now_or_never(cancelled).is_none());
        assert!(cache.lock().entries.is_empty());
    }
}
