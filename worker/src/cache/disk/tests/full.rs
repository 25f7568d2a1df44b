//! A full disk: whose segments go for whom, whether they were opened or not, and what is left for the next life.

use std::collections::BTreeSet;
use std::ops::Range;

use feedline_data::random::mix64;

use super::*;

/// Length of a row that fills a segment.
const LARGE: usize = 64 << 10;
/// Bytes of a segment with such a row.
const FILE: u64 = (8 + 20 + LARGE) as u64;

/// Keeps rows that fill a segment each.
async fn keep_large(tier: &DiskTier, prefix: Prefix, ids: Range<u64>) {
    tier.open(prefix).await.expect("the folder can be read");
    for id in ids {
        tier.put(prefix, vec![(id, Bytes::from(vec![id as u8; LARGE]))]);
        tier.flush().await;
    }
}

/// The ids below 20 that it keeps.
async fn large(tier: &DiskTier, prefix: Prefix) -> Vec<u64> {
    let rows = tier.get(prefix, (0..20).collect()).await;
    let check = |(id, bytes): (u64, Option<Bytes>)| {
        bytes.map(|bytes| (bytes == vec![id as u8; LARGE]).then_some(id).expect("its own bytes"))
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
async fn rows_that_are_worth_more_take_the_place_of_the_least_worth_oldest_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tier(folder.path(), 6 * FILE);
    active(&tier, [(1, 1.0), (2, 2.0), (3, 4.0)]);
    keep_large(&tier, 1, 0..3).await;
    keep_large(&tier, 2, 0..3).await;
    keep_large(&tier, 3, 0..2).await;
    assert_eq!(large(&tier, 1).await, [2], "no more of it went than was needed");
    assert_eq!((large(&tier, 2).await, large(&tier, 3).await), (ids(0..3), ids(0..2)));
    assert_eq!(tier.held_bytes(), 6 * FILE);
    let reader = tier.shared.index(1).expect("it holds a row");
    keep_large(&tier, 2, 3..5).await;
    assert_eq!((large(&tier, 1).await, large(&tier, 2).await), (vec![], ids(0..4)));
    assert_eq!(reader.read(2), None);
    assert!(tier.shared.index(1).is_none() && !has_folder(folder.path(), 1), "it goes with its last row");
    keep_large(&tier, 1, 5..6).await;
    assert!(!tier.has_room(1) && !tier.has_room(2) && tier.has_room(3));
    keep_large(&tier, 3, 2..9).await;
    assert_eq!((large(&tier, 2).await, large(&tier, 3).await), (vec![], ids(0..6)), "its own rows stay");
    assert!(!tier.has_room(3));
    active(&tier, [(1, 5.0), (2, 2.0), (3, 4.0)]);
    assert!(tier.has_room(1) && !tier.has_room(2) && !tier.has_room(3));
    keep_large(&tier, 1, 5..6).await;
    assert_eq!((large(&tier, 1).await, large(&tier, 3).await), (ids(5..6), ids(1..6)));
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn what_was_let_go_is_not_found_by_the_next_life() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = tier(folder.path(), 4 * FILE);
    active(&first, [(1, 1.0), (2, 2.0)]);
    keep_large(&first, 1, 0..4).await;
    keep_large(&first, 2, 0..2).await;
    // Evicted rows can be stored again, also by a prefix that stored before.
    active(&first, [(1, 4.0), (2, 2.0)]);
    keep_large(&first, 1, 0..1).await;
    let expected = (vec![0, 2, 3], vec![1]);
    assert_eq!((large(&first, 1).await, large(&first, 2).await), expected);
    let held_bytes = first.held_bytes();
    drop(first);
    let second = tier(folder.path(), 4 * FILE);
    assert_eq!((second.held_bytes(), bytes_on_disk(folder.path())), (held_bytes, held_bytes));
    for prefix in [1, 2] {
        second.open(prefix).await.expect("the segments can be read");
    }
    assert_eq!((large(&second, 1).await, large(&second, 2).await), expected);
}

#[tokio::test]
async fn segments_that_nobody_has_opened_go_one_by_one() {
    let folder = tempfile::tempdir().expect("a folder");
    keep_large(&tier(folder.path(), 3 * FILE), 7, 0..3).await;
    let path = folder.path().join("part-000").join(folder_name(7));
    make_oldest(&folders::segment_files(&path).expect("it can be listed").swap_remove(2).path);
    let tier = tier(folder.path(), 3 * FILE);
    active(&tier, [(9, 1.0)]);
    keep_large(&tier, 9, 0..1).await;
    tier.open(7).await.expect("the folder can be read");
    assert_eq!((large(&tier, 7).await, large(&tier, 9).await), (vec![0, 1], vec![0]));
    keep_large(&tier, 9, 1..2).await;
    assert_eq!((large(&tier, 7).await, large(&tier, 9).await), (vec![1], vec![0, 1]));
    keep_large(&tier, 9, 2..3).await;
    assert_eq!((large(&tier, 7).await, large(&tier, 9).await), (vec![], vec![0, 1, 2]));
    assert!(!has_folder(folder.path(), 7));
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn what_no_job_uses_goes_first_then_what_was_used_longest_ago() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let tier = tier(folder.path(), 6 * FILE);
        for prefix in [5, 6, 7] {
            keep_large(&tier, prefix, 0..1).await;
        }
    }
    make_oldest(&segment(folder.path(), 7));
    let tier = tier(folder.path(), 6 * FILE);
    active(&tier, [(1, 9.0), (3, 1.0)]);
    for prefix in [1, 2, 3] {
        keep_large(&tier, prefix, 0..1).await;
    }
    // Of those without a job only the first has a known worth; the sixth was used last, though nothing was kept.
    active(&tier, [(6, 0.0), (3, 1.0)]);
    active(&tier, [(3, 1.0), (4, 2.0)]);
    let mut gone = Vec::new();
    for id in 0..6 {
        let before: BTreeSet<Prefix> = found_folders(folder.path());
        keep_large(&tier, 4, id..id + 1).await;
        gone.extend(&before - &found_folders(folder.path()));
    }
    assert_eq!(gone, [7, 5, 2, 6, 1, 3]);
    assert_eq!(large(&tier, 4).await, ids(0..6));
}

#[tokio::test]
async fn folders_are_found_in_the_order_in_which_they_were_written_last() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let tier = tier(folder.path(), 1 << 20);
        for prefix in [5, 6, 7] {
            keep(&tier, prefix, 0..1).await;
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
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tier(folder.path(), 300_000);
    active(&tier, [(1, 1.0), (2, 1.2)]);
    let mut kept = BTreeSet::new();
    for step in 0..1000 {
        let random = mix64(step);
        let (prefix, id) = (Prefix::from(1 + random % 2), (random >> 8) % 250);
        tier.put(prefix, vec![row(id)]);
        if step % 50 == 49 {
            tier.flush().await;
            let mut now = BTreeSet::new();
            for prefix in [1, 2] {
                now.extend(found(&tier, prefix, 0..250).await.into_iter().map(|id| (prefix, id)));
            }
            assert!(kept.is_subset(&now), "a put before {step} cost a row");
            kept = now;
        }
    }
    assert!(!tier.has_room(1) && !tier.has_room(2));
    assert!(kept.len() > 280, "{} rows of 1,020 bytes", kept.len());
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn a_row_that_cannot_fit_evicts_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tier(folder.path(), 3 * FILE);
    keep_large(&tier, 1, 0..1).await;
    active(&tier, [(2, 1.0), (3, 1.0)]);
    keep_large(&tier, 2, 0..2).await;
    tier.open(3).await.expect("there is nothing to read");
    tier.put(3, vec![(0, Bytes::from(vec![0; LARGE + 1]))]);
    tier.flush().await;
    assert_eq!((large(&tier, 1).await, large(&tier, 2).await), (ids(0..1), ids(0..2)));
    assert!(!tier.has_room(3) && !has_folder(folder.path(), 3));
    keep_large(&tier, 3, 1..2).await;
    assert_eq!((large(&tier, 1).await, large(&tier, 3).await), (vec![], ids(1..2)));
}

#[tokio::test]
async fn a_segment_that_goes_while_a_folder_is_read_is_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    keep_large(&tier(folder.path(), 3 * FILE), 1, 0..2).await;
    let path = folder.path().join("part-000").join(folder_name(1));
    let kept = DiskIndex::load(&path).expect("the folder can be read");
    let oldest = folders::segment_files(&path).expect("it can be listed").swap_remove(0);
    std::fs::remove_file(&oldest.path).expect("it can go");
    kept.remove_deleted_segments();
    assert_eq!((kept.read(0), kept.read(1).map(|row| row.len())), (None, Some(LARGE)));
}

#[tokio::test]
async fn a_row_that_was_damaged_and_kept_again_does_not_go_with_its_old_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tier(folder.path(), 3 * FILE);
    keep_large(&tier, 1, 0..1).await;
    let path = segment(folder.path(), 1);
    let mut bytes = std::fs::read(&path).expect("the segment");
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).expect("it can be damaged");
    make_oldest(&path);
    assert_eq!(large(&tier, 1).await, ids(0..0));
    keep_large(&tier, 1, 0..2).await;
    active(&tier, [(2, 1.0)]);
    keep_large(&tier, 2, 0..1).await;
    assert!(!path.exists());
    assert_eq!(large(&tier, 1).await, ids(0..2));
}

#[tokio::test]
async fn jobs_that_write_in_turn_fill_segments_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tier(folder.path(), 1 << 20);
    for id in 0..10 {
        keep(&tier, 1, id..id + 1).await;
        keep(&tier, 2, id..id + 1).await;
    }
    for prefix in [1, 2] {
        let path = segment(folder.path(), prefix);
        assert_eq!(std::fs::metadata(path).expect("a segment").len(), 8 + 10 * 1020);
        assert_eq!(found(&tier, prefix, 0..10).await, ids(0..10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_opened_read_and_let_go_at_once_ends_as_the_next_life_finds_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Arc::new(tier(folder.path(), 5 * FILE));
    let work = |seed: u64| {
        let tier = Arc::clone(&first);
        async move {
            for step in 0..100 {
                let random = mix64(seed << 32 | step);
                let prefix = Prefix::from(1 + random % 4);
                if random >> 8 & 7 == 0 {
                    active(&tier, (1..=4).map(|prefix| (prefix, (random >> (8 + 4 * prefix) & 15) as f64)));
                }
                let id = random >> 40 & 15;
                keep_large(&tier, prefix, id..id + 1).await;
                large(&tier, prefix).await;
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|seed| tokio::spawn(work(seed))).collect();
    for task in tasks {
        task.await.expect("every row has its own bytes");
    }
    assert!(first.held_bytes() <= 5 * FILE && first.held_bytes() == bytes_on_disk(folder.path()));
    let mut left = Vec::new();
    for prefix in 1..=4 {
        left.push(large(&first, prefix).await);
    }
    drop(first);
    let second = tier(folder.path(), 5 * FILE);
    for prefix in 1..=4 {
        second.open(prefix).await.expect("the segments can be read");
        assert_eq!(large(&second, prefix).await, left[prefix as usize - 1]);
    }
}
