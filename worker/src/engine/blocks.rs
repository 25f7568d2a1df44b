//! Blocks of small rows, read once and kept while neighbouring splits need them: bounded in bytes over all jobs, least
//! recently used first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::ids::JobId;
use feedline_sources::{BlockRows, SourceError};
use tokio::sync::OnceCell;

/// A block of a job's dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockKey {
    pub(crate) job: JobId,
    pub(crate) shard: u32,
    pub(crate) block: u32,
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
}

struct Entry {
    cell: Cell,
    used: u64,
    /// 0 until it is read.
    bytes: u64,
}

/// A block that someone asks for; an entry that nobody could fill goes with the last who asked.
struct Asked<'a> {
    cache: &'a BlockCache,
    key: BlockKey,
    cell: Cell,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        // The cache's and this one.
        let last = Arc::strong_count(&self.cell) == 2;
        if last && state.entries.get(&self.key).is_some_and(|entry| entry.bytes == 0) {
            state.entries.remove(&self.key);
        }
    }
}

impl BlockCache {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the cache")
    }

    /// Bytes that it keeps alive.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Lets go of the blocks of all other jobs.
    pub(crate) fn keep_jobs(&self, keep: impl Fn(JobId) -> bool) {
        let mut state = self.lock();
        let State { entries, held_bytes, .. } = &mut *state;
        entries.retain(|key, entry| {
            let keep = keep(key.job);
            *held_bytes -= if keep { 0 } else { entry.bytes };
            keep
        });
    }

    /// The block, read by `read` unless it is here; whoever asks meanwhile waits for the same read.
    pub(crate) async fn get_or_read(
        &self,
        key: BlockKey,
        read: impl Future<Output = Result<BlockRows, SourceError>>,
    ) -> Result<Arc<BlockRows>, SourceError> {
        let asked = Asked { cache: self, key, cell: self.touch(key) };
        let rows = asked.cell.get_or_try_init(|| async { read.await.map(Arc::new) }).await?;
        self.note_bytes(key, rows.held_bytes as u64);
        Ok(Arc::clone(rows))
    }

    fn touch(&self, key: BlockKey) -> Cell {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let new = || Entry { cell: Cell::default(), used, bytes: 0 };
        let entry = state.entries.entry(key).or_insert_with(new);
        entry.used = used;
        Arc::clone(&entry.cell)
    }

    fn note_bytes(&self, key: BlockKey, bytes: u64) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&key) else { return };
        if entry.bytes == 0 {
            entry.bytes = bytes.max(1);
            state.held_bytes += bytes.max(1);
        }
        while state.held_bytes > self.capacity_bytes && state.entries.len() > 1 {
            let loaded = state.entries.iter().filter(|(_, entry)| entry.bytes > 0);
            let Some(oldest) = loaded.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else { break };
            if let Some(entry) = state.entries.remove(&oldest) {
                state.held_bytes -= entry.bytes;
            }
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

    fn key(block: u32) -> BlockKey {
        BlockKey { job: JobId(1), shard: 0, block }
    }

    fn rows(held_bytes: usize) -> BlockRows {
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        BlockRows {
            batch,
            failures: Vec::new(),
            held_bytes,
            store_bytes: 0,
            store_requests: 0,
            store_wait: Duration::ZERO,
            blocking_bytes: 0,
        }
    }

    #[tokio::test]
    async fn a_block_is_read_once_and_the_least_recently_used_leaves() {
        let cache = BlockCache::new(100);
        let reads = AtomicUsize::new(0);
        let get = |block: u32| {
            cache.get_or_read(key(block), async {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok(rows(40))
            })
        };
        for block in [0, 1, 0, 2, 0, 1] {
            get(block).await.expect("it reads");
            assert!(cache.held_bytes() <= 100);
        }
        // Block 1 left for block 2: it is the only one that was read twice.
        assert_eq!(reads.load(Ordering::Relaxed), 4);
        cache.keep_jobs(|job| job == JobId(1));
        assert_eq!(cache.held_bytes(), 80);
        cache.keep_jobs(|job| job != JobId(1));
        assert_eq!(cache.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_read_that_ends_after_its_job_is_not_kept() {
        let cache = BlockCache::new(100);
        let read = cache.get_or_read(key(0), async {
            cache.keep_jobs(|_| false);
            Ok(rows(40))
        });
        read.await.expect("it reads");
        assert_eq!(cache.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_read_that_fails_or_is_given_up_leaves_nothing_behind() {
        let cache = BlockCache::new(100);
        let lost = || SourceError::NotFound { url: "file:///d/a".to_owned() };
        cache.get_or_read(key(0), async { Err(lost()) }).await.expect_err("it fails");
        let given_up = cache.get_or_read(key(1), std::future::pending());
        assert!(futures::FutureExt::now_or_never(given_up).is_none());
        assert!(cache.lock().entries.is_empty());
    }
}
