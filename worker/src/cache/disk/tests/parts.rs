//! What workers that are gone have left in their parts of a folder.

use std::time::{Duration, SystemTime};

use super::*;

/// LongRowPolicy than a day.
const LONG: Duration = Duration::from_secs(30 * 3600);

/// Has three workers at once keep a row of their own each, of a good thousand bytes.
async fn fill(folder: &Path) {
    let tiers = [0, 1, 2].map(|id| (id, tier(folder, 1 << 20)));
    for (id, tier) in &tiers {
        keep(tier, 1, *id..*id + 1).await;
    }
}

fn part(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:03}"))
}

/// The parts that hold rows.
fn parts(folder: &Path) -> Vec<usize> {
    (0..3).filter(|number| bytes_on_disk(&part(folder, *number)) > 1000).collect()
}

/// Sets the last use of a part to this long ago.
fn age(folder: &Path, number: usize, by: Duration) {
    let part = part(folder, number);
    let segments = std::fs::read_dir(part.join(folder_name(1))).expect("the prefix has a folder");
    let segments = segments.map(|entry| entry.expect("it can be listed").path());
    for path in segments.chain([part.join("claim")]) {
        let file = File::options().write(true).open(path).expect("it can be opened");
        file.set_modified(SystemTime::now() - by).expect("it can be made older");
    }
}

#[tokio::test]
async fn rows_that_nobody_has_used_for_a_day_make_room_the_oldest_first() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path()).await;
    let other = part(folder.path(), 1).join("thesis");
    std::fs::write(&other, "x").expect("a file of somebody else");
    // The workers may only have been started again.
    drop(tier(folder.path(), 1500));
    assert_eq!(parts(folder.path()), [0, 1, 2]);
    for (number, by) in [(0, LONG), (1, 2 * LONG), (2, LONG)] {
        age(folder.path(), number, by);
    }
    // All together may hold as much.
    drop(tier_of_several(folder.path(), 1500, 4000));
    assert_eq!(parts(folder.path()), [0, 1, 2]);
    drop(tier_of_several(folder.path(), 1500, 2500));
    assert_eq!(parts(folder.path()), [0, 2]);
    let last = tier(folder.path(), 1500);
    assert_eq!(parts(folder.path()), [0]);
    last.open(1).await.expect("the folder can be read");
    assert_eq!(found(&last, 1, 0..3).await, [0], "its own rows stay");
    assert!(other.exists());
}

#[tokio::test]
async fn rows_of_workers_that_run_or_have_just_ended_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path()).await;
    let (first, second) = (tier(folder.path(), 1 << 20), tier(folder.path(), 1 << 20));
    for number in 0..3 {
        age(folder.path(), number, LONG);
    }
    let third = tier(folder.path(), 100);
    assert_eq!(parts(folder.path()), [0, 1, 2], "one each");
    drop((first, second));
    let first = tier(folder.path(), 100);
    assert_eq!(parts(folder.path()), [0, 1, 2], "they were used until now");
    drop((first, third));
    age(folder.path(), 2, LONG);
    drop(tier(folder.path(), 100));
    assert_eq!(parts(folder.path()), [0, 1]);
}
