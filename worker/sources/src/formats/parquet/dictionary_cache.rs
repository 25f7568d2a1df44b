//! Caches the dictionary pages of a row group, because all of its blocks need them. A dictionary is about 1 MiB long, but may be
//! several times as large as a block if its values are large.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::cache::{CachedSize, ShardCache, ShardCacheMemory};
use crate::error::SourceError;
use crate::object::Object;

/// Maximum size of the cached dictionaries of a row group in bytes.
pub(super) const MAX_GROUP_BYTES: u64 = 32 << 20;
/// Maximum number of dictionaries that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// The dictionaries of the most recently used row groups.
pub(super) struct DictionaryCache {
    groups: ShardCache<GroupDictionaries>,
    max_group_bytes: u64,
}

/// The dictionaries of a row group.
pub(super) struct GroupDictionaries {
    /// The dictionary of each leaf column.
    cells: Box<[OnceCell<Bytes>]>,
}

impl CachedSize for GroupDictionaries {
    fn held_bytes(&self) -> usize {
        let dictionaries: usize = self.cells.iter().filter_map(OnceCell::get).map(Bytes::len).sum();
        dictionaries + std::mem::size_of_val(&*self.cells)
    }
}

impl DictionaryCache {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        // The rest is for the footers, which are needed as often.
        let max_group_bytes = (memory.limit_bytes() / 2).min(MAX_GROUP_BYTES);
        Self { groups: ShardCache::new(memory), max_group_bytes }
    }

    /// Maximum size of the cached dictionaries of a row group in bytes.
    pub(super) fn max_group_bytes(&self) -> u64 {
        self.max_group_bytes
    }

    /// Reads the dictionaries of these leaf columns through the cache. Concurrent calls read a dictionary once. Returns the
    /// dictionaries by their offsets, without those that exceed the limit of their row group.
    pub(super) async fn get(
        &self,
        object: &Object,
        (group, columns): (usize, usize),
        wanted: impl Iterator<Item = (usize, Range<u64>)>,
    ) -> Result<HashMap<u64, Bytes>, SourceError> {
        let mut remaining_bytes = self.max_group_bytes;
        let wanted: Vec<(usize, Range<u64>)> = wanted
            .filter(|(_, range)| {
                let remaining = remaining_bytes.checked_sub(range.end - range.start);
                remaining.inspect(|remaining| remaining_bytes = *remaining).is_some()
            })
            .collect();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let empty = || GroupDictionaries { cells: (0..columns).map(|_| OnceCell::new()).collect() };
        let cached = self.groups.get_part(object.shard(), group, empty);
        let reads = wanted.into_iter().map(|(leaf, range)| {
            let cached = &cached;
            async move {
                let start = range.start;
                let read = cached.cells[leaf].get_or_try_init(|| object.read(range)).await;
                read.map(|dictionary| (start, dictionary.clone()))
            }
        });
        let reads: Vec<_> = reads.collect();
        let read = futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS).try_collect().await;
        self.groups.recharge(&cached);
        read
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::ShardRef;
    use feedline_data::memory::MemoryLimits;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::read_memory::ReadMemory;

    #[tokio::test]
    async fn dictionaries_are_read_once_and_count_towards_the_memory() {
        let (store, key): (Arc<dyn ObjectStore>, _) = (Arc::new(InMemory::new()), Path::from("x"));
        store.put(&key, vec![7; 10_000].into()).await.unwrap();
        let version = crate::version::version_of(&store.head(&key).await.unwrap());
        let shard =
            ShardRef { url: "mem://x".to_owned(), size_bytes: 10_000, version, ..ShardRef::default() };
        let object = Object::new(store, key, shard);
        let memory = ReadMemory { limits: MemoryLimits::new(160_000), used_bytes: Arc::default() };
        let cache = DictionaryCache::new(&ShardCacheMemory::new(&memory));
        assert_eq!(cache.max_group_bytes, 10_000);
        let ranges = [(0, 0..100), (2, 100..9_000), (3, 9_000..9_900), (4, 9_900..10_000)];
        for _ in 0..2 {
            let read = cache.get(&object, (5, 5), ranges.iter().cloned()).await.unwrap();
            let mut offsets: Vec<(u64, usize)> =
                read.iter().map(|(offset, bytes)| (*offset, bytes.len())).collect();
            offsets.sort_unstable();
            assert_eq!(offsets, [(0, 100), (100, 8_900), (9_000, 900), (9_900, 100)]);
            assert_eq!(object.traffic().0, 10_000);
        }
        assert!(memory.used_bytes.load(Ordering::Relaxed) >= 10_000);
        let again =
            cache.get(&object, (6, 5), [(0, 0..9_950), (1, 9_900..10_000)].into_iter()).await.unwrap();
        assert_eq!(again.keys().collect::<Vec<_>>(), [&0], "the second one exceeds the limit");
        assert_eq!(object.traffic().0, 10_000 + 9_950);
        assert!(memory.used_bytes.load(Ordering::Relaxed) < 11_000, "the other row group was evicted");
    }
}
