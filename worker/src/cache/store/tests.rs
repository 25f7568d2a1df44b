//! Tests of the store tier: workers find the rows of other workers, and corrupted or truncated objects are omitted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::segment::{EMPTY_SEGMENT_BYTES, stored_row_bytes};
use super::*;

const MIB: usize = 1 << 20;

fn tier(url: &str, limit_bytes: u64) -> StoreTier {
    let settings = StoreCacheSettings { url: url.to_owned(), limit_bytes };
    StoreTier::new(settings, Stores::new(Vec::new()))
}

fn as_url(folder: &Path) -> &str {
    folder.to_str().expect("UTF-8")
}

fn row(id: u64) -> CachedRow {
    (id, Bytes::from(vec![id as u8; 1000]))
}

async fn find_rows(tier: &StoreTier, prefix: Prefix, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let ids: Vec<u64> = ids.into_iter().collect();
    let rows = tier.get(prefix, ids.clone()).await;
    assert_eq!(rows.len(), ids.len());
    let check = |(id, bytes): (u64, Option<Bytes>)| {
        bytes.map(|bytes| (bytes == row(id).1).then_some(id).expect("the row has its own bytes"))
    };
    ids.into_iter().zip(rows).filter_map(check).collect()
}

async fn open_tier(url: &str, limit_bytes: u64, prefix: Prefix) -> StoreTier {
    let tier = tier(url, limit_bytes);
    tier.open(prefix).await.expect("the directory can be listed");
    tier
}

async fn store_rows(tier: &StoreTier, prefix: Prefix, ids: std::ops::Range<u64>) {
    tier.open(prefix).await.expect("the directory can be listed");
    tier.put(prefix, ids.map(row).collect());
    tier.flush().await;
}

fn set_active(tier: &StoreTier, prefixes: impl IntoIterator<Item = Prefix>) {
    tier.set_active(Arc::new(prefixes.into_iter().collect()));
}

/// Returns the objects of a prefix.
fn objects(folder: &Path, prefix: Prefix) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join(folder_name(prefix))).expect("the prefix has a directory");
    files.map(|file| file.expect("it can be listed").path()).collect()
}

#[tokio::test]
async fn workers_find_rows_that_others_stored_before_or_after() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("made/when needed");
    let first = tier(as_url(&directory), 1 << 20);
    store_rows(&first, 1, 0..5).await;
    let second = open_tier(&format!("file://{}/", as_url(&directory)), 1 << 20, 1).await;
    assert_eq!(second.held_bytes(), first.held_bytes());
    assert_eq!(second.held_bytes(), EMPTY_SEGMENT_BYTES + 5 * stored_row_bytes(1000));
    store_rows(&second, 1, 3..8).await;
    store_rows(&second, 2, 0..1).await;
    assert_eq!(find_rows(&second, 1, [9, 7, 0, 4, 7]).await, [7, 0, 4, 7]);
    assert_eq!(find_rows(&second, 2, 0..8).await, [0]);

    assert_eq!(find_rows(&first, 1, 0..9).await, [0, 1, 2, 3, 4]);
    set_active(&first, [1, 2]);
    first.shared.refresh().await;
    assert_eq!(find_rows(&first, 1, 0..9).await, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(find_rows(&first, 2, 0..9).await, Vec::<u64>::new(), "the prefix is not opened");
    assert_eq!(first.held_bytes(), second.held_bytes());
}

#[tokio::test]
async fn pending_rows_are_found_and_each_row_is_stored_once() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = open_tier(as_url(folder.path()), 1 << 20, 1).await;
    tier.put(1, vec![row(7), row(7)]);
    tier.put(1, vec![row(7), row(8)]);
    let bytes = EMPTY_SEGMENT_BYTES + 2 * stored_row_bytes(1000);
    assert_eq!((tier.pending_bytes(), tier.held_bytes()), (bytes, 0));
    assert_eq!(find_rows(&tier, 1, 0..9).await, [7, 8]);
    tier.flush().await;
    assert_eq!((tier.pending_bytes(), tier.held_bytes()), (0, bytes));
    store_rows(&tier, 1, 7..9).await;
    tier.shared.list_segments(&BTreeSet::from([1])).await.expect("it can be listed");
    assert_eq!(tier.held_bytes(), bytes);
    let [object] = &objects(folder.path(), 1)[..] else { panic!("more than one object") };
    assert_eq!(std::fs::metadata(object).expect("it is there").len(), bytes);
    assert_eq!(find_rows(&tier, 1, 0..9).await, [7, 8]);
}

#[tokio::test]
async fn full_segments_and_pending_rows_of_ended_jobs_are_uploaded_at_once() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = open_tier(as_url(folder.path()), 1 << 30, 1).await;
    let large = |id: u64| (id, Bytes::from(vec![id as u8; MIB]));
    tier.put(1, (0..9).map(large).collect());
    tier.shared.uploads.wait().await;
    assert!(tier.held_bytes() > 8 << 20 && tier.pending_bytes() > 1 << 20);
    assert_eq!(objects(folder.path(), 1).len(), 1);
    set_active(&tier, [1]);
    tier.shared.uploads.wait().await;
    assert!(tier.pending_bytes() > 0, "its job still runs");
    set_active(&tier, [2]);
    tier.shared.uploads.wait().await;
    assert_eq!(tier.pending_bytes(), 0);
    let rows = open_tier(as_url(folder.path()), 1 << 30, 1).await.get(1, (0..9).collect()).await;
    assert_eq!(rows, (0..9).map(|id| Some(large(id).1)).collect::<Vec<_>>());
}

#[test]
fn pending_rows_are_bounded_and_old_ones_are_uploaded() {
    let large = |id: u64| (id, Bytes::from_static(&[0; MIB]));
    let now = Instant::now();
    let mut catalog = SegmentCatalog::new(1 << 40);
    for prefix in 1..=4 {
        assert!(catalog.push(prefix, (0..7).map(large).collect(), now).is_empty());
    }
    let full = catalog.push(5, (0..7).map(large).collect(), now);
    assert_eq!(full.len(), 1, "no segment is full, but one must be uploaded");
    assert_eq!(full[0].rows.len(), 7);
    assert!(catalog.pending_bytes <= 32 << 20);
    assert!(catalog.push(6, (0..7).map(large).collect(), now).is_empty(), "one upload is in progress");
    assert!(catalog.pending_bytes <= 32 << 20);

    let mut catalog = SegmentCatalog::new(1 << 40);
    let batches = catalog.push(1, (0..40).map(large).collect(), now);
    assert_eq!(batches.iter().map(|batch| batch.rows.len()).collect::<Vec<_>>(), [8, 8, 8]);
    assert!(catalog.take_old(now + Duration::from_secs(29)).is_empty());
    let old = catalog.take_old(now + Duration::from_secs(30));
    assert_eq!(old.iter().map(|batch| batch.rows.len()).sum::<usize>(), 7);
}

#[test]
fn an_unresponsive_store_is_paused_and_its_segments_are_found_again() {
    let (_, entries) = build_segment(1, &[row(1), row(2)]);
    let object = || ListedObject { prefix: 1, name: "a".into(), bytes: 0 };
    let now = Instant::now();
    let mut catalog = SegmentCatalog::new(1 << 20);
    catalog.on_index_read(object(), &entries);
    let (found, reads) = catalog.find(1, &[1, 3, 2], now);
    assert_eq!((found, reads.len()), (vec![None; 3], 1));
    assert_eq!(reads[0].rows, [(0, entries[0]), (2, entries[1])]);

    catalog.remove_segment(1, 0, "a", true);
    assert!(catalog.reads.begin(now), "the first failure is logged");
    assert!(!catalog.reads.begin(now), "the next is not");
    catalog.on_index_read(object(), &entries);
    assert!(catalog.find(1, &[1], now).1.is_empty(), "requests are paused");
    let later = now + Duration::from_secs(45);
    assert_eq!(catalog.find(1, &[1], later).1.len(), 1);

    catalog.remove_segment(1, 1, "a", false);
    catalog.on_index_read(object(), &entries);
    assert!(catalog.find(1, &[1], later).1.is_empty(), "a corrupted segment is read once");
}

#[tokio::test]
async fn damaged_truncated_and_foreign_objects_are_ignored() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(as_url(folder.path()), 1 << 20), 1, 0..3).await;
    let object = objects(folder.path(), 1).remove(0);
    let whole = std::fs::read(&object).expect("the object");
    let frame = 32 + 3 * 20;
    let cut = (0..whole.len()).step_by(97).chain([1, 8, 31, 32, whole.len() - 1]);
    let mut variants: Vec<Vec<u8>> = cut.map(|length| whole[..length].to_vec()).collect();
    for offset in whole.len() - frame..whole.len() {
        let mut damaged = whole.clone();
        damaged[offset] ^= 1 << (offset % 8);
        variants.push(damaged);
    }
    variants.push(vec![b'x'; 300_000]);
    variants.push([&whole[..], b"more"].concat());
    for (number, variant) in variants.into_iter().enumerate() {
        std::fs::write(&object, variant).expect("it can be corrupted");
        let tier = open_tier(as_url(folder.path()), 1 << 20, 1).await;
        assert_eq!(find_rows(&tier, 1, 0..3).await, Vec::<u64>::new(), "variant {number}");
    }
    let again = tier(as_url(folder.path()), 1 << 20);
    store_rows(&again, 1, 0..3).await;
    assert_eq!(find_rows(&open_tier(as_url(folder.path()), 1 << 20, 1).await, 1, 0..3).await, [0, 1, 2]);
}

#[tokio::test]
async fn foreign_objects_and_segments_in_the_wrong_folder_are_ignored() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(as_url(folder.path()), 1 << 20), 1, 0..3).await;
    let object = objects(folder.path(), 1).remove(0);
    let wrong = folder.path().join(folder_name(2)).join("0-0000.rows");
    std::fs::create_dir_all(wrong.parent().expect("a directory")).expect("it can be made");
    std::fs::copy(&object, &wrong).expect("it can be copied");
    std::fs::write(folder.path().join("thesis"), "not rows").expect("another file can be written");
    std::fs::write(object.with_file_name("notes.txt"), "not rows").expect("another file can be written");
    let tier = open_tier(as_url(folder.path()), 1 << 20, 1).await;
    tier.open(2).await.expect("the directory can be listed");
    assert_eq!(find_rows(&tier, 1, 0..3).await, [0, 1, 2]);
    assert_eq!(find_rows(&tier, 2, 0..3).await, Vec::<u64>::new());
    assert_eq!(std::fs::read(folder.path().join("thesis")).expect("it is there"), b"not rows");
}

#[test]
fn invalid_lengths_are_rejected() {
    let prefix: Prefix = 5 << 64 | 3;
    let (segment, entries) = build_segment(prefix, &[row(1), row(2)]);
    let size = segment.len() as u64;
    let footer = SegmentFooter::parse(&segment, size).expect("the footer is valid");
    let index = segment.slice(footer.index.start as usize..footer.index.end as usize);
    assert_eq!(footer.entries(prefix, &index), Some(entries));
    assert_eq!(footer.entries(prefix + 1, &index), None);

    let forged = |start: u64, rows: u64, index: &[u8]| {
        let seed = prefix as u64 ^ (prefix >> 64) as u64;
        let mut tail = index.to_vec();
        tail.extend([start, rows, xxh3_64_with_seed(index, seed)].map(u64::to_le_bytes).concat());
        tail.extend(&segment[segment.len() - 8..]);
        tail
    };
    let numbers = [0, 1, 7, 8, 100, size, 1 << 32, u64::MAX / 20, u64::MAX / 20 + 1, u64::MAX - 1, u64::MAX];
    for start in numbers {
        for rows in numbers {
            for claimed in numbers {
                let parsed = SegmentFooter::parse(&forged(start, rows, b""), claimed);
                assert!(parsed.is_none_or(|footer| footer.index.end + 32 == claimed), "{start} {rows}");
            }
        }
    }
    assert_eq!(
        SegmentFooter::parse(&forged(8, 1 << 40, b""), 8 + 20 * (1 << 40) + 32),
        None,
        "the index is too long"
    );
    for (offset, length) in [(7, 0), (8, u32::MAX), (u64::MAX, 0), (u64::MAX - 20, u32::MAX), (81, 0)] {
        let index = [&1_u64.to_le_bytes()[..], &offset.to_le_bytes(), &length.to_le_bytes()].concat();
        let footer = SegmentFooter::parse(&forged(100, 1, &index), 152).expect("the footer is valid");
        assert_eq!(footer.entries(prefix, &index), None, "{offset} {length}");
    }
}

#[tokio::test]
async fn a_damaged_row_is_missing_and_can_be_stored_again() {
    let folder = tempfile::tempdir().expect("a directory");
    store_rows(&tier(as_url(folder.path()), 1 << 20), 1, 0..3).await;
    let object = objects(folder.path(), 1).remove(0);
    let mut bytes = std::fs::read(&object).expect("the object");
    bytes[8 + 1020 + 500] ^= 1;
    std::fs::write(&object, bytes).expect("it can be corrupted");
    let again = open_tier(as_url(folder.path()), 1 << 20, 1).await;
    assert_eq!(find_rows(&again, 1, 0..3).await, [0, 2]);
    store_rows(&again, 1, 1..2).await;
    assert_eq!(find_rows(&again, 1, 0..3).await, [0, 1, 2]);
}

#[tokio::test]
async fn objects_that_disappear_or_shrink_lose_only_their_own_rows() {
    let folder = tempfile::tempdir().expect("a directory");
    let tier = tier(as_url(folder.path()), 1 << 20);
    store_rows(&tier, 1, 0..3).await;
    let deleted = objects(folder.path(), 1).remove(0);
    store_rows(&tier, 1, 3..6).await;
    let truncated =
        objects(folder.path(), 1).into_iter().find(|object| *object != deleted).expect("a second object");
    store_rows(&tier, 1, 6..9).await;
    std::fs::remove_file(&deleted).expect("it can be deleted");
    std::fs::File::options()
        .write(true)
        .open(truncated)
        .expect("it is there")
        .set_len(100)
        .expect("it can be cut");
    assert_eq!(find_rows(&tier, 1, 0..9).await, [6, 7, 8]);
    store_rows(&tier, 1, 0..6).await;
    assert_eq!(find_rows(&tier, 1, 0..9).await, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn the_limit_counts_all_objects_under_the_url() {
    let folder = tempfile::tempdir().expect("a directory");
    let first = tier(as_url(folder.path()), 4000);
    store_rows(&first, 1, 0..8).await;
    assert_eq!(find_rows(&first, 1, 0..8).await, [0, 1, 2]);
    assert!(!first.has_room() && first.held_bytes() <= 4000);

    let second = open_tier(as_url(folder.path()), 6000, 2).await;
    assert!(second.has_room());
    std::fs::write(folder.path().join("thesis"), vec![0; 100_000]).expect("another file can be written");
    set_active(&second, [2]);
    second.shared.refresh().await;
    assert!(!second.has_room() && second.held_bytes() > 100_000);
    store_rows(&second, 2, 0..1).await;
    assert_eq!(find_rows(&second, 2, 0..1).await, Vec::<u64>::new());

    std::fs::remove_file(folder.path().join("thesis")).expect("it can be deleted");
    std::fs::remove_dir_all(folder.path().join(folder_name(1))).expect("it can be deleted");
    second.shared.refresh().await;
    assert!(second.has_room(), "other workers have deleted objects");
    store_rows(&second, 2, 0..1).await;
    assert_eq!(find_rows(&second, 2, 0..1).await, [0]);
}

#[tokio::test]
async fn failed_uploads_drop_rows_and_are_retried() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("rows");
    let tier = open_tier(as_url(&directory), 1 << 20, 1).await;
    std::fs::write(&directory, b"").expect("a file can be written at the path of the directory");
    tier.put(1, (0..3).map(row).collect());
    tier.flush().await;
    assert_eq!(find_rows(&tier, 1, 0..3).await, Vec::<u64>::new());
    assert!(!tier.has_room());
    tier.put(1, vec![row(0)]);
    assert_eq!((tier.pending_bytes(), tier.held_bytes()), (0, 0));
    std::fs::remove_file(&directory).expect("it can be deleted");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(45)).await;
    tokio::time::resume();
    assert!(tier.has_room());
    store_rows(&tier, 1, 0..3).await;
    assert_eq!(find_rows(&tier, 1, 0..3).await, [0, 1, 2]);
}

#[tokio::test]
async fn a_url_that_cannot_be_listed_is_an_error() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("a file");
    let cases = [
        (as_url(&file), "not a directory"),
        ("http://host/rows", "cannot be listed"),
        ("", "empty"),
        ("s3://", "bucket"),
    ];
    for (url, reason) in cases {
        let error = tier(url, 1 << 20).open(1).await.expect_err("it cannot be listed");
        assert!(error.contains(reason) && error.contains("--cache-store"), "{error}");
    }
}

#[tokio::test]
async fn an_index_longer_than_the_first_read_is_read_completely() {
    let folder = tempfile::tempdir().expect("a directory");
    let rows: Vec<CachedRow> = (0..14_000).map(|id: u64| (id * 7, Bytes::from(vec![id as u8]))).collect();
    let first = open_tier(as_url(folder.path()), 1 << 20, 1).await;
    first.put(1, rows.clone());
    first.flush().await;
    assert_eq!(objects(folder.path(), 1).len(), 1);
    let second = open_tier(as_url(folder.path()), 1 << 20, 1).await;
    for (id, bytes) in rows.into_iter().step_by(997) {
        assert_eq!(second.get(1, vec![id, id + 1]).await, [Some(bytes), None]);
    }
}

/// The SplitMix64 random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Returns a row of 0 to 100 KB whose bytes depend on its prefix and id.
    fn row(prefix: Prefix, id: u64) -> CachedRow {
        let mut random = Self(prefix as u64 * 1000 + id);
        let length = random.below(100_000) as usize;
        (id, Bytes::from(vec![random.below(256) as u8; length]))
    }
}

#[tokio::test]
async fn all_workers_find_the_rows_of_two_writers_in_any_order() {
    const ROWS: u64 = 300;
    for seed in 0..4 {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().expect("a directory");
        let tiers = [tier(as_url(folder.path()), 1 << 30), tier(as_url(folder.path()), 1 << 30)];
        for tier in &tiers {
            tier.open(1).await.expect("the directory can be listed");
            tier.open(2).await.expect("the directory can be listed");
            set_active(tier, [1, 2]);
        }
        let mut model: BTreeMap<(Prefix, u64), Bytes> = BTreeMap::new();
        for _ in 0..80 {
            let tier = &tiers[random.below(2) as usize];
            let prefix = Prefix::from(1 + random.below(2));
            let ids: Vec<u64> = (0..random.below(12)).map(|_| random.below(ROWS)).collect();
            match random.below(6) {
                0 => tier.flush().await,
                1 => tier.shared.refresh().await,
                2 => {
                    for (id, bytes) in ids.iter().zip(tier.get(prefix, ids.clone()).await) {
                        assert!(bytes.is_none() || bytes.as_ref() == model.get(&(prefix, *id)), "row {id}");
                    }
                }
                _ => {
                    let rows: Vec<CachedRow> = ids.iter().map(|id| Random::row(prefix, *id)).collect();
                    model.extend(rows.iter().map(|(id, bytes)| ((prefix, *id), bytes.clone())));
                    tier.put(prefix, rows);
                }
            }
        }
        for tier in &tiers {
            tier.flush().await;
        }
        let third = open_tier(as_url(folder.path()), 1 << 30, 1).await;
        third.open(2).await.expect("the directory can be listed");
        for tier in tiers.iter().chain([&third]) {
            tier.shared.refresh().await;
            for prefix in [1, 2] {
                let wanted: Vec<Option<Bytes>> =
                    (0..ROWS).map(|id| model.get(&(prefix, id)).cloned()).collect();
                let found = tier.get(prefix, (0..ROWS).collect()).await;
                assert!(found == wanted, "seed {seed}, prefix {prefix}");
            }
        }
    }
}

#[test]
fn the_layout_of_version_2_is_that_of_the_earlier_release() {
    let checksum = xxhash_rust::xxh3::xxh3_64_with_seed;
    let index = [5_u64.to_le_bytes().as_slice(), &8_u64.to_le_bytes(), &3_u32.to_le_bytes()].concat();
    let record =
        [5_u64.to_le_bytes().as_slice(), &3_u32.to_le_bytes(), &checksum(b"row", 5).to_le_bytes(), b"row"]
            .concat();
    let footer = [31, 1, checksum(&index, 7)].map(u64::to_le_bytes).concat();
    let magic = b"FLROWS\0\x02".as_slice();
    let expected = [magic, &record, &index, &footer, magic].concat();
    let (segment, _) = build_segment(7, &[(5, Bytes::from_static(b"row"))]);
    assert_eq!(segment, expected);
    assert!(SegmentFooter::parse(&segment, segment.len() as u64).is_some());
    let newer = [&segment[..expected.len() - 1], &[9]].concat();
    assert!(SegmentFooter::parse(&newer, newer.len() as u64).is_none());
    assert!(rejection_reason(&newer).contains("format version 9, but this release reads version 2"));
    assert!(rejection_reason(b"cut off").contains("not a complete segment"));
}

/// Copies the segment that ef04d0d wrote. Returns the copy's directory, its file and its prefix.
fn copy_earlier_segment() -> (tempfile::TempDir, PathBuf, Prefix) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/golden/ef04d0d/store");
    let name = "96779aa6443bb232d8e759d73b0613c7/dd5c7e3976a6c4a6-0000.rows";
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join(name);
    std::fs::create_dir(file.parent().expect("it is in a folder")).expect("the folder is new");
    std::fs::copy(golden.join(name), &file).expect("the fixture is there");
    (folder, file, prefix_of(name).expect("it is the name of a segment"))
}

#[tokio::test]
async fn segments_of_the_earlier_release_are_read_and_those_of_another_version_are_ignored() {
    let (folder, file, prefix) = copy_earlier_segment();
    let found = async || {
        let tier = open_tier(as_url(folder.path()), 10 * MIB as u64, prefix).await;
        tier.get(prefix, (0..25).collect()).await.into_iter().flatten().count()
    };
    assert_eq!(found().await, 20, "the segment has one row of the cache for each row of the dataset");
    let mut bytes = std::fs::read(&file).expect("it is readable");
    let end = bytes.len();
    (bytes[7], bytes[end - 1]) = (9, 9);
    std::fs::write(&file, &bytes).expect("it is writable");
    assert_eq!(found().await, 0);
    assert!(rejection_reason(&bytes).contains("format version 9, but this release reads version 2"));
}
