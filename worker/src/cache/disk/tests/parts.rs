//! Tests of the parts of a cache directory that ended workers have left.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use super::*;

/// A period of more than a day.
const MORE_THAN_A_DAY: Duration = Duration::from_secs(30 * 3600);

/// Stores one row of 1,000 bytes in each of three parts, by three concurrent workers.
async fn fill_three_parts(folder: &Path) {
    let tiers = [0, 1, 2].map(|id| (id, tier(folder, 1 << 20)));
    for (id, tier) in &tiers {
        store_rows(tier, 1, *id..*id + 1).await;
    }
}

fn part(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:03}"))
}

/// Returns the numbers of the parts that contain rows.
fn parts_with_rows(folder: &Path) -> Vec<usize> {
    (0..3).filter(|number| bytes_on_disk(&part(folder, *number)) > 1000).collect()
}

/// Makes the last use of a part earlier by a duration.
fn make_older(folder: &Path, number: usize, by: Duration) {
    let part = part(folder, number);
    let segments = std::fs::read_dir(part.join(folder_name(1))).expect("the prefix has a directory");
    let segments = segments.map(|entry| entry.expect("it can be listed").path());
    for path in segments.chain([part.join("claim")]) {
        let file = File::options().write(true).open(path).expect("it can be opened");
        file.set_modified(SystemTime::now() - by).expect("the modification time can be set");
    }
}

#[tokio::test]
async fn parts_unused_for_a_day_are_deleted_oldest_first_above_the_limit() {
    let folder = tempfile::tempdir().expect("a directory");
    fill_three_parts(folder.path()).await;
    let other = part(folder.path(), 1).join("thesis");
    std::fs::write(&other, "x").expect("another file can be written");
    // Recently used parts remain, because their workers may restart.
    drop(tier(folder.path(), 1500));
    assert_eq!(parts_with_rows(folder.path()), [0, 1, 2]);
    for (number, by) in [(0, MORE_THAN_A_DAY), (1, 2 * MORE_THAN_A_DAY), (2, MORE_THAN_A_DAY)] {
        make_older(folder.path(), number, by);
    }
    // The limit of the directory permits all parts.
    drop(tier_with_folder_limit(folder.path(), 1500, 4000));
    assert_eq!(parts_with_rows(folder.path()), [0, 1, 2]);
    drop(tier_with_folder_limit(folder.path(), 1500, 2500));
    assert_eq!(parts_with_rows(folder.path()), [0, 2]);
    let last = tier(folder.path(), 1500);
    assert_eq!(parts_with_rows(folder.path()), [0]);
    last.open(1).await.expect("the directory can be read");
    assert_eq!(find_rows(&last, 1, 0..3).await, [0], "the worker keeps the rows of its own part");
    assert!(other.exists());
}

#[tokio::test]
async fn parts_of_running_or_recently_ended_workers_are_not_deleted() {
    let folder = tempfile::tempdir().expect("a directory");
    fill_three_parts(folder.path()).await;
    let (first, second) = (tier(folder.path(), 1 << 20), tier(folder.path(), 1 << 20));
    for number in 0..3 {
        make_older(folder.path(), number, MORE_THAN_A_DAY);
    }
    let third = tier(folder.path(), 100);
    assert_eq!(parts_with_rows(folder.path()), [0, 1, 2], "each worker uses one part");
    drop((first, second));
    let first = tier(folder.path(), 100);
    assert_eq!(parts_with_rows(folder.path()), [0, 1, 2], "the parts were in use until now");
    drop((first, third));
    make_older(folder.path(), 2, MORE_THAN_A_DAY);
    drop(tier(folder.path(), 100));
    assert_eq!(parts_with_rows(folder.path()), [0, 1]);
}

#[tokio::test]
async fn only_the_owner_can_read_cached_rows() {
    let root = tempfile::tempdir().expect("a directory");
    let folder = root.path().join("cache/rows");
    let tier = tier(&folder, 1 << 20);
    store_rows(&tier, 1, 0..1).await;
    let mode = |path: &Path| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    let part = part(&folder, 0);
    for created in [&root.path().join("cache"), &folder, &part, &part.join(folder_name(1))] {
        assert_eq!(mode(created), 0o700, "{}", created.display());
    }
    for created in [part.join("claim"), segment(&folder, 1)] {
        assert_eq!(mode(&created), 0o600, "{}", created.display());
    }
}
