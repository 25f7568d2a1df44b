//! Tests of the blocks that are copied to a disk.

use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;

fn key(block: u64) -> CopiedBlockKey {
    (GraphHash(1), block)
}

fn block_bytes(block: u64) -> Bytes {
    (0..10).map(|place| block as u8 * 10 + place).collect()
}

/// Reads four bytes of a block of ten bytes. Returns whether the block was fetched.
async fn read(cache: &CopiedBlocks, block: u64) -> bool {
    let fetch = || async move { Ok(block_bytes(block)) };
    let (bytes, is_fetched) = cache.read(key(block), 3..7, fetch).await.unwrap();
    assert_eq!(bytes, block_bytes(block).slice(3..7));
    is_fetched
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn the_least_recently_used_blocks_are_removed() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("blocks");
    let cache = CopiedBlocks::create(&folder, 25).unwrap();
    assert!(read(&cache, 0).await);
    assert!(read(&cache, 1).await);
    assert!(!read(&cache, 0).await);
    assert!(read(&cache, 2).await);
    assert_eq!(files(&folder), 2);
    assert!(!read(&cache, 0).await, "it was used after the second block");
    assert!(read(&cache, 1).await, "it was removed");
    assert_eq!((files(&folder), cache.lock().bytes), (2, 20));
    drop(cache);
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_block_is_fetched_once_for_all_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CopiedBlocks::create(&folder.path().join("blocks"), 100).unwrap();
    let fetches = AtomicU32::new(0);
    let fetch = || async {
        fetches.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        Ok(block_bytes(4))
    };
    let reads = (0..8).map(|_| cache.read(key(4), 0..10, fetch));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap().0, block_bytes(4));
    }
    assert_eq!(fetches.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_block_that_cannot_be_fetched_or_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = folder.path().join("blocks");
    let cache = CopiedBlocks::create(&blocks, 100).unwrap();
    let damaged = || async { Err(GraphError::file("x.npy", "damaged")) };
    let error = cache.read(key(0), 0..1, damaged).await.unwrap_err();
    assert_eq!(error.to_string(), "`x.npy`: damaged");
    std::fs::remove_dir_all(&blocks).unwrap();
    let fetch = || async { Ok(block_bytes(0)) };
    let error = cache.read(key(0), 0..1, fetch).await.unwrap_err().to_string();
    assert!(error.contains("cannot write the file: ") && error.contains("check the path"), "{error}");
    assert_eq!(cache.lock().bytes, 0);
    std::fs::create_dir_all(&blocks).unwrap();
    assert!(read(&cache, 0).await, "the next read repeats the fetch");
    std::fs::remove_dir_all(&blocks).unwrap();
    assert!(read(&cache, 0).await, "a file that is missing is fetched");
}

proptest! {
    #[test]
    fn blocks_never_exceed_the_limit(
        limit in 0_u64..100,
        blocks in prop::collection::vec((0_u64..12, 1_u64..20), 0..60),
    ) {
        let mut state = CacheState::default();
        for (block, bytes) in blocks {
            drop(state.use_block(key(block)));
            if state.blocks[&key(block)].file.is_some() {
                continue;
            }
            let (file, removed) = state.make_room(bytes, limit);
            prop_assert!(removed.iter().all(|removed| removed.number < file.number));
            prop_assert!(state.finish(key(block), file));
            let on_disk: u64 = state.blocks.values().filter_map(|block| block.file).map(|file| file.bytes).sum();
            prop_assert_eq!(on_disk, state.bytes);
            prop_assert!(on_disk <= limit.max(bytes), "one block may be larger");
            prop_assert_eq!(state.order.len(), state.blocks.len());
        }
    }
}
