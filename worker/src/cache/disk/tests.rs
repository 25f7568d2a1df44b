//! Tests of the disk tier: rows survive a restart, and corrupted or truncated rows are omitted.

mod full;
mod parts;

use std::path::{Path, PathBuf};

use super::folders::folder_name;
use super::index::DiskIndex;
use super::*;
use crate::cache::planned;

fn tier(folder: &Path, limit_bytes: u64) -> DiskTier {
    tier_with_folder_limit(folder, limit_bytes, limit_bytes)
}

/// Creates a tier of one of several workers that share the limit `folder_bytes`.
fn tier_with_folder_limit(folder: &Path, limit_bytes: u64, folder_bytes: u64) -> DiskTier {
    let folder = folder.to_owned();
    DiskTier::new(RowCacheSettings { folder, limit_bytes, folder_bytes, allows_planned_caches: false })
        .expect("a thread starts")
}

fn set_active(tier: &DiskTier, values: impl IntoIterator<Item = (Prefix, f64)>) {
    tier.set_active(Arc::new(planned(values)));
}

fn row(id: u64) -> CachedRow {
    (id, Bytes::from(vec![id as u8; 1000]))
}

async fn find_rows(tier: &DiskTier, prefix: Prefix, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let ids: Vec<u64> = ids.into_iter().collect();
    let rows = tier.get(prefix, ids.clone()).await;
    let check = |(id, bytes): (u64, Option<Bytes>)| {
        bytes.map(|bytes| (bytes == row(id).1).then_some(id).expect("the row has its own bytes"))
    };
    ids.into_iter().zip(rows).filter_map(check).collect()
}

async fn store_rows(tier: &DiskTier, prefix: Prefix, ids: std::ops::Range<u64>) {
    tier.open(prefix).await.expect("the directory can be read");
    tier.put(prefix, ids.map(row).collect());
    tier.flush().await;
}

/// Returns the size of all files in a directory and its subdirectories.
fn bytes_on_disk(folder: &Path) -> u64 {
    let bytes = |entry: std::fs::DirEntry| match entry.metadata().expect("the entry has metadata") {
        metadata if metadata.is_dir() => bytes_on_disk(&entry.path()),
        metadata => metadata.len(),
    };
    let entries = std::fs::read_dir(folder).expect("it can be listed");
    entries.map(|entry| bytes(entry.expect("it can be listed"))).sum()
}

/// Returns the only file in the directory of a prefix.
fn segment(folder: &Path, prefix: Prefix) -> PathBuf {
    let mut files = std::fs::read_dir(folder.join("part-000").join(format!("{prefix:032x}")))
        .expect("the prefix has a directory");
    files.next().expect("a segment").expect("it can be listed").path()
}

#[tokio::test]
async fn rows_survive_a_restart_and_belong_to_their_prefix() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(folder.path(), 1 << 20), 1, 0..5).await;
    let again = tier(folder.path(), 1 << 20);
    assert!(again.held_bytes() > 5000);
    store_rows(&again, 1, 3..8).await;
    store_rows(&again, 2, 0..1).await;
    assert_eq!(find_rows(&again, 1, [9, 7, 0, 4]).await, [7, 0, 4]);
    assert_eq!(find_rows(&again, 2, 0..8).await, [0]);
    drop(again);
    let third = tier(folder.path(), 1 << 20);
    third.open(1).await.expect("two segments can be read");
    assert_eq!(find_rows(&third, 1, 0..9).await, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_truncated_record_is_ignored_at_every_length() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(folder.path(), 1 << 20), 1, 0..3).await;
    let path = segment(folder.path(), 1);
    let whole = std::fs::read(&path).expect("the segment");
    for length in (0..whole.len()).step_by(97).chain([1, 8, 27, 28, whole.len() - 1]) {
        std::fs::write(&path, &whole[..length]).expect("it can be cut");
        let cut = tier(folder.path(), 1 << 20);
        cut.open(1).await.expect("a part of a segment can be read");
        let records = length.saturating_sub(8) as u64 / 1020;
        assert_eq!(find_rows(&cut, 1, 0..3).await, (0..records).collect::<Vec<_>>(), "{length} bytes");
    }
}

#[tokio::test]
async fn a_damaged_row_is_missing_and_can_be_stored_again() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(folder.path(), 1 << 20), 1, 0..3).await;
    let path = segment(folder.path(), 1);
    let mut bytes = std::fs::read(&path).expect("the segment");
    bytes[8 + 1020 + 500] ^= 1;
    std::fs::write(&path, bytes).expect("it can be corrupted");
    let again = tier(folder.path(), 1 << 20);
    again.open(1).await.expect("the directory can be read");
    assert_eq!(find_rows(&again, 1, 0..3).await, [0, 2]);
    store_rows(&again, 1, 1..2).await;
    assert_eq!(find_rows(&again, 1, 0..3).await, [0, 1, 2]);
}

#[tokio::test]
async fn the_limit_holds_and_rows_of_ended_jobs_are_evicted() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 4000);
    set_active(&tier, [(1, 1.0)]);
    store_rows(&tier, 1, 0..8).await;
    assert_eq!(find_rows(&tier, 1, 0..8).await, [0, 1, 2]);
    assert!(!tier.has_room(1) && tier.held_bytes() <= 4000);
    set_active(&tier, [(2, 1.0)]);
    store_rows(&tier, 2, 0..2).await;
    assert_eq!(find_rows(&tier, 2, 0..2).await, [0, 1]);
    assert_eq!(find_rows(&tier, 1, 0..8).await, Vec::<u64>::new());
    assert_eq!(tier.held_bytes(), bytes_on_disk(folder.path()));
}

#[tokio::test]
async fn other_files_are_never_touched_and_workers_claim_separate_parts() {
    let folder = tempfile::tempdir().expect("a directory");
    let (first, second) = (tier(folder.path(), 2000), tier(folder.path(), 2000));
    let others = folder.path().join("part-000/2024");
    std::fs::create_dir_all(&others).expect("another directory can be created");
    std::fs::write(others.join("thesis"), vec![0; 100_000]).expect("another file can be written");
    for (tier, id) in [(&first, 0), (&second, 1)] {
        store_rows(tier, 7, id..id + 1).await;
        set_active(tier, [(9, 1.0)]);
        store_rows(tier, 9, id..id + 1).await;
        assert_eq!(find_rows(tier, 9, 0..2).await, [id]);
        assert_eq!(find_rows(tier, 7, 0..2).await, Vec::<u64>::new());
    }
    assert!(others.join("thesis").exists());
    assert_eq!(find_rows(&first, 9, 0..2).await, [0], "the second worker did not touch the row");
}

#[tokio::test]
async fn a_job_stores_its_rows_again_after_they_were_deleted() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(folder.path(), 2000);
    store_rows(&tier, 1, 0..1).await;
    set_active(&tier, [(2, 1.0)]);
    store_rows(&tier, 2, 0..1).await;
    set_active(&tier, [(1, 1.0)]);
    tier.put(1, vec![row(5)]);
    tier.flush().await;
    assert_eq!(find_rows(&tier, 1, 0..9).await, [5]);
}

#[tokio::test]
async fn an_unusable_folder_is_an_error_that_names_the_remedy() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("a file");
    let error = tier(&file, 1 << 20).open(1).await.expect_err("a file is not a directory");
    assert!(error.contains("cannot use the cache directory") && error.contains("--cache-dir"), "{error}");
}

#[test]
fn segments_of_the_last_release_are_read_and_those_of_another_version_are_rejected() {
    let name = "5f288862ef646e2feb54108e49c6563e";
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/golden/ef04d0d/worker/rows/part-000");
    let rows = |folder: &Path| {
        let index = DiskIndex::load(folder).expect("the directory can be read");
        (0..10_000).filter(|row| index.read(*row).is_some()).count()
    };
    let whole = rows(&golden.join(name));
    assert!(whole > 0);
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let segment =
        std::fs::read_dir(golden.join(name)).expect("the directory exists").next().expect("it has a segment");
    let mut bytes = std::fs::read(segment.expect("it is readable").path()).expect("it is readable");
    let copy = folder.path().join("1.rows");
    std::fs::write(&copy, &bytes).expect("the scratch directory is writable");
    assert_eq!(rows(folder.path()), whole);
    bytes[7] = 9;
    std::fs::write(&copy, &bytes).expect("the scratch directory is writable");
    assert_eq!(rows(folder.path()), 0);
    let reason =
        crate::cache::format_version::version_mismatch(&bytes[..8], 1).expect("it is of another version");
    assert!(reason.contains("format version 9, but this release reads version 1"), "{reason}");
}
