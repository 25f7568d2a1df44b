//! Tests of a full disk tier: the order of evictions, and the rows that remain after a restart.

use std::collections::BTreeSet;
use std::ops::Range;

use feedline_data::random::mix64;

use super::*;

/// Length of a row that fills a segment.
const LARGE_ROW_BYTES: usize = 64 << 10;
/// Size of a segment with such a row.
const FILE_BYTES: u64 = (8 + 20 + LARGE_ROW_BYTES) as u64;

/// Stores rows that fill one segment each.
async fn store_large_rows(tier: &DiskTier, prefix: Prefix, ids: Range<u64>) {
    tier.open(prefix).await.expect("the directory can be read");
    for id in ids {
        tier.put(prefix, vec![(id, Bytes::from(vec![id as u8; LARGE_ROW_BYTES]))]);
        tier.flush().await;
    }
}

/// Returns the ids below 20 of the stored rows.
async fn find_large_rows(tier: &DiskTier, prefix: Prefix) -> Vec<u64> {
    let rows = tier.get(prefix, (0..20).collect()).await;
    let check = |(id, bytes): (u64, Option<Bytes>)| {
        bytes.map(|bytes| {
            (bytes == vec![id as u8; LARGE_ROW_BYTES]).then_some(id).expect("the row has its own bytes")
        })
    };
    (0..20).zip(rows).filter_map(check).collect()
}

fn ids(range: Range<u64>) -> Vec<u64> {
    range.collect()
}

fn make_oldest(path: &Path) {
    let file = File::options().write(true).open(path).expect("it can be opened");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("it can be made the oldest");
}

fn has_folder(folder: &Path, prefix: Prefix) -> bool {
    folder.join("part-000").join(folder_name(prefix)).exists()
}

#[tokio::test]
async fn valuable_rows_evict_the_oldest_of_the_least_valuable_rows() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 6 * FILE_BYTES);
    set_active(&tier, [(1, 1.0), (2, 2.0), (3, 4.0)]);
    store_large_rows(&tier, 1, 0..3).await;
    store_large_rows(&tier, 2, 0..3).await;
    store_large_rows(&tier, 3, 0..2).await;
    assert_eq!(find_large_rows(&tier, 1).await, [2], "no more rows were evicted than needed");
    assert_eq!((find_large_rows(&tier, 2).await, find_large_rows(&tier, 3).await), (ids(0..3), ids(0..2)));
    assert_eq!(tier.held_bytes(), 6 * FILE_BYTES);
    let reader = tier.shared.index(1).expect("the tier has a row of the prefix");
    store_large_rows(&tier, 2, 3..5).await;
    assert_eq!((find_large_rows(&tier, 1).await, find_large_rows(&tier, 2).await), (vec![], ids(0..4)));
    assert_eq!(reader.read(2), None);
    assert!(
        tier.shared.index(1).is_none() && !has_folder(folder.path(), 1),
        "the directory is deleted with its last row"
    );
    store_large_rows(&tier, 1, 5..6).await;
    assert!(!tier.has_room(1) && !tier.has_room(2) && tier.has_room(3));
    store_large_rows(&tier, 3, 2..9).await;
    assert_eq!(
        (find_large_rows(&tier, 2).await, find_large_rows(&tier, 3).await),
        (vec![], ids(0..6)),
        "rows are not evicted for rows of their own prefix"
    );
    assert!(!tier.has_room(3));
    set_active(&tier, [(1, 5.0), (2, 2.0), (3, 4.0)]);
    assert!(tier.has_room(1) && !tier.has_room(2) && !tier.has_room(3));
    store_large_rows(&tier, 1, 5..6).await;
    assert_eq!((find_large_rows(&tier, 1).await, find_large_rows(&tier, 3).await), (ids(5..6), ids(1..6)));
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn evicted_rows_are_not_found_after_a_restart() {
    let folder = tempfile::tempdir().expect("a directory");
    let first = tier(folder.path(), 4 * FILE_BYTES);
    set_active(&first, [(1, 1.0), (2, 2.0)]);
    store_large_rows(&first, 1, 0..4).await;
    store_large_rows(&first, 2, 0..2).await;
    // Evicted rows can be stored again, also by a prefix that stored before.
    set_active(&first, [(1, 4.0), (2, 2.0)]);
    store_large_rows(&first, 1, 0..1).await;
    let expected = (vec![0, 2, 3], vec![1]);
    assert_eq!((find_large_rows(&first, 1).await, find_large_rows(&first, 2).await), expected);
    let held_bytes = first.held_bytes();
    drop(first);
    let second = tier(folder.path(), 4 * FILE_BYTES);
    assert_eq!((second.held_bytes(), bytes_on_disk(folder.path())), (held_bytes, held_bytes));
    for prefix in [1, 2] {
        second.open(prefix).await.expect("the segments can be read");
    }
    assert_eq!((find_large_rows(&second, 1).await, find_large_rows(&second, 2).await), expected);
}

#[tokio::test]
async fn segments_of_unopened_prefixes_are_evicted_one_by_one() {
    let folder = tempfile::tempdir().expect("a directory");
    store_large_rows(&tier(folder.path(), 3 * FILE_BYTES), 7, 0..3).await;
    let path = folder.path().join("part-000").join(folder_name(7));
    make_oldest(&folders::segment_files(&path).expect("it can be listed").swap_remove(2).path);
    let tier = tier(folder.path(), 3 * FILE_BYTES);
    set_active(&tier, [(9, 1.0)]);
    store_large_rows(&tier, 9, 0..1).await;
    tier.open(7).await.expect("the directory can be read");
    assert_eq!((find_large_rows(&tier, 7).await, find_large_rows(&tier, 9).await), (vec![0, 1], vec![0]));
    store_large_rows(&tier, 9, 1..2).await;
    assert_eq!((find_large_rows(&tier, 7).await, find_large_rows(&tier, 9).await), (vec![1], vec![0, 1]));
    store_large_rows(&tier, 9, 2..3).await;
    assert_eq!((find_large_rows(&tier, 7).await, find_large_rows(&tier, 9).await), (vec![], vec![0, 1, 2]));
    assert!(!has_folder(folder.path(), 7));
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn inactive_prefixes_are_evicted_first_then_the_longest_unused() {
    let folder = tempfile::tempdir().expect("a directory");
    {
        let tier = tier(folder.path(), 6 * FILE_BYTES);
        for prefix in [5, 6, 7] {
            store_large_rows(&tier, prefix, 0..1).await;
        }
    }
    make_oldest(&segment(folder.path(), 7));
    let tier = tier(folder.path(), 6 * FILE_BYTES);
    set_active(&tier, [(1, 9.0), (3, 1.0)]);
    for prefix in [1, 2, 3] {
        store_large_rows(&tier, prefix, 0..1).await;
    }
    // Of the inactive prefixes, only prefix 1 has a measured value. Prefix 6 was active last, although no row was added.
    set_active(&tier, [(6, 0.0), (3, 1.0)]);
    set_active(&tier, [(3, 1.0), (4, 2.0)]);
    let mut evicted = Vec::new();
    for id in 0..6 {
        let before: BTreeSet<Prefix> = found_folders(folder.path());
        store_large_rows(&tier, 4, id..id + 1).await;
        evicted.extend(&before - &found_folders(folder.path()));
    }
    assert_eq!(evicted, [7, 5, 2, 6, 1, 3]);
    assert_eq!(find_large_rows(&tier, 4).await, ids(0..6));
}

#[tokio::test]
async fn folders_are_sorted_by_the_time_of_their_last_write() {
    let folder = tempfile::tempdir().expect("a directory");
    {
        let tier = tier(folder.path(), 1 << 20);
        for prefix in [5, 6, 7] {
            store_rows(&tier, prefix, 0..1).await;
        }
    }
    let order = || -> Vec<Prefix> {
        let found = folders::prefix_sizes(&folder.path().join("part-000"));
        found.into_iter().map(|(prefix, _)| prefix).collect()
    };
    for (oldest, expected) in [(7, [7, 5, 6]), (5, [5, 7, 6]), (6, [5, 6, 7])] {
        make_oldest(&segment(folder.path(), oldest));
        assert_eq!(order(), expected);
    }
}

fn found_folders(folder: &Path) -> BTreeSet<Prefix> {
    folders::prefix_sizes(&folder.join("part-000")).into_iter().map(|(prefix, _)| prefix).collect()
}

#[tokio::test]
async fn rows_of_about_the_same_value_do_not_evict_each_other() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 300_000);
    set_active(&tier, [(1, 1.0), (2, 1.2)]);
    let mut kept = BTreeSet::new();
    for step in 0..1000 {
        let random = mix64(step);
        let (prefix, id) = (Prefix::from(1 + random % 2), (random >> 8) % 250);
        tier.put(prefix, vec![row(id)]);
        if step % 50 == 49 {
            tier.flush().await;
            let mut now = BTreeSet::new();
            for prefix in [1, 2] {
                now.extend(find_rows(&tier, prefix, 0..250).await.into_iter().map(|id| (prefix, id)));
            }
            assert!(kept.is_subset(&now), "a put before step {step} evicted a row");
            kept = now;
        }
    }
    assert!(!tier.has_room(1) && !tier.has_room(2));
    assert!(kept.len() > 280, "{} rows of 1,020 bytes", kept.len());
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn a_row_that_cannot_fit_evicts_nothing() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 3 * FILE_BYTES);
    store_large_rows(&tier, 1, 0..1).await;
    set_active(&tier, [(2, 1.0), (3, 1.0)]);
    store_large_rows(&tier, 2, 0..2).await;
    tier.open(3).await.expect("there is nothing to read");
    tier.put(3, vec![(0, Bytes::from(vec![0; LARGE_ROW_BYTES + 1]))]);
    tier.flush().await;
    assert_eq!((find_large_rows(&tier, 1).await, find_large_rows(&tier, 2).await), (ids(0..1), ids(0..2)));
    assert!(!tier.has_room(3) && !has_folder(folder.path(), 3));
    store_large_rows(&tier, 3, 1..2).await;
    assert_eq!((find_large_rows(&tier, 1).await, find_large_rows(&tier, 3).await), (vec![], ids(1..2)));
}

#[tokio::test]
async fn a_segment_that_is_deleted_during_the_load_is_removed_from_the_index() {
    let folder = tempfile::tempdir().expect("a directory");
    store_large_rows(&tier(folder.path(), 3 * FILE_BYTES), 1, 0..2).await;
    let path = folder.path().join("part-000").join(folder_name(1));
    let kept = DiskIndex::load(&path).expect("the directory can be read");
    let oldest = folders::segment_files(&path).expect("it can be listed").swap_remove(0);
    std::fs::remove_file(&oldest.path).expect("the segment can be deleted");
    kept.remove_deleted_segments();
    assert_eq!((kept.read(0), kept.read(1).map(|row| row.len())), (None, Some(LARGE_ROW_BYTES)));
}

#[tokio::test]
async fn a_row_that_was_stored_again_survives_the_eviction_of_its_damaged_segment() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 3 * FILE_BYTES);
    store_large_rows(&tier, 1, 0..1).await;
    let path = segment(folder.path(), 1);
    let mut bytes = std::fs::read(&path).expect("the segment");
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).expect("it can be corrupted");
    make_oldest(&path);
    assert_eq!(find_large_rows(&tier, 1).await, ids(0..0));
    store_large_rows(&tier, 1, 0..2).await;
    set_active(&tier, [(2, 1.0)]);
    store_large_rows(&tier, 2, 0..1).await;
    assert!(!path.exists());
    assert_eq!(find_large_rows(&tier, 1).await, ids(0..2));
}

#[tokio::test]
async fn alternating_writes_of_two_prefixes_fill_one_segment_each() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 1 << 20);
    for id in 0..10 {
        store_rows(&tier, 1, id..id + 1).await;
        store_rows(&tier, 2, id..id + 1).await;
    }
    for prefix in [1, 2] {
        let path = segment(folder.path(), prefix);
        assert_eq!(std::fs::metadata(path).expect("a segment").len(), 8 + 10 * 1020);
        assert_eq!(find_rows(&tier, prefix, 0..10).await, ids(0..10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_after_concurrent_operations_are_the_same_after_a_restart() {
    let folder = tempfile::tempdir().expect("a directory");
    let first = Arc::new(tier(folder.path(), 5 * FILE_BYTES));
    let work = |seed: u64| {
        let tier = Arc::clone(&first);
        async move {
            for step in 0..100 {
                let random = mix64(seed << 32 | step);
                let prefix = Prefix::from(1 + random % 4);
                if random >> 8 & 7 == 0 {
                    set_active(
                        &tier,
                        (1..=4).map(|prefix| (prefix, (random >> (8 + 4 * prefix) & 15) as f64)),
                    );
                }
                let id = random >> 40 & 15;
                store_large_rows(&tier, prefix, id..id + 1).await;
                find_large_rows(&tier, prefix).await;
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|seed| tokio::spawn(work(seed))).collect();
    for task in tasks {
        task.await.expect("every row has its own bytes");
    }
    assert!(first.held_bytes() <= 5 * FILE_BYTES && first.held_bytes() == bytes_on_disk(folder.path()));
    let mut remaining = Vec::new();
    for prefix in 1..=4 {
        remaining.push(find_large_rows(&first, prefix).await);
    }
    drop(first);
    let second = tier(folder.path(), 5 * FILE_BYTES);
    for prefix in 1..=4 {
        second.open(prefix).await.expect("the segments can be read");
        assert_eq!(find_large_rows(&second, prefix).await, remaining[prefix as usize - 1]);
    }
}
