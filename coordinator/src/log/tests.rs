//! The log keeps what was acknowledged through crashes, and says so where it cannot.

use std::fs;

use feedline_core::cluster::messages::JobState;
use feedline_core::ids::{JobId, WorkerId};
use feedline_core::layout::{SplitRef, StreamPosition};
use tempfile::TempDir;

use super::*;
use crate::error::CoordinatorError;

fn record(number: u64) -> Record {
    let job = JobId(number);
    match number % 3 {
        0 => Record::Ended { job, state: JobState::Failed(format!("shard {number} is gone")) },
        1 => Record::Advanced {
            job,
            streams: vec![(0, StreamPosition { epoch: 1, row: number })],
            splits: Vec::new(),
        },
        _ => {
            let split = SplitRef { epoch: 0, ordinal: number, stream: 0 };
            Record::Granted { job, worker: WorkerId(7), splits: vec![split] }
        }
    }
}

/// Commits of one, two and one record.
fn commits() -> Vec<Vec<Record>> {
    vec![vec![record(0)], vec![record(1), record(2)], vec![record(3)]]
}

/// The bytes of a log with these commits, and where each ends.
fn written(commits: &[Vec<Record>]) -> (Vec<u8>, Vec<usize>) {
    let folder = TempDir::new().unwrap();
    let (mut log, found) = FileLog::open(folder.path()).unwrap();
    assert!(found.is_empty());
    let mut ends = vec![log.len_bytes() as usize];
    for commit in commits {
        log.append(commit).unwrap();
        ends.push(log.len_bytes() as usize);
    }
    (fs::read(folder.path().join("records.log")).unwrap(), ends)
}

fn open_with(bytes: &[u8]) -> (TempDir, Result<(FileLog, Vec<Record>), CoordinatorError>) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("records.log"), bytes).unwrap();
    let opened = FileLog::open(folder.path());
    (folder, opened)
}

#[test]
fn a_log_cut_at_any_byte_opens_with_its_whole_commits_and_goes_on() {
    let (bytes, ends) = written(&commits());
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut).count().saturating_sub(1);
        let mut expected: Vec<Record> = commits()[..whole].concat();
        let (folder, opened) = open_with(&bytes[..cut]);
        let (mut log, records) = opened.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(records, expected, "cut at {cut}");
        log.append(&[record(9)]).unwrap();
        drop(log);
        expected.push(record(9));
        assert_eq!(FileLog::open(folder.path()).unwrap().1, expected, "cut at {cut}, then appended");
    }
}

#[test]
fn a_flipped_byte_is_refused_unless_it_may_be_a_torn_end() {
    let (bytes, ends) = written(&commits());
    let last = ends[ends.len() - 2];
    for place in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 0x20;
        let (_folder, opened) = open_with(&flipped);
        match opened {
            Ok((_, records)) => {
                assert!(place >= last, "byte {place} was flipped and nobody noticed");
                assert_eq!(records, commits()[..2].concat());
            }
            Err(error) => {
                assert!(place < last, "the end may always be torn, byte {place}: {error}");
                let expected =
                    if place < ends[0] { "is no log of this release" } else { "is damaged at byte" };
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    }
}

#[test]
fn damage_names_the_file_the_byte_and_what_to_do() {
    let (mut bytes, ends) = written(&commits());
    bytes[ends[1] + 12] ^= 1;
    let (folder, opened) = open_with(&bytes);
    let path = folder.path().join("records.log");
    let expected = format!(
        "the coordinator's log {} is damaged at byte {}: its checksum is wrong, and intact records follow from byte {}; restore it from a copy, or move it away to start without the jobs it holds",
        path.display(),
        ends[1],
        ends[2]
    );
    assert_eq!(opened.unwrap_err().to_string(), expected);
}

#[test]
fn compaction_keeps_the_snapshot_and_what_follows() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = FileLog::open(folder.path()).unwrap();
    log.compact_above(1000);
    let mut appended = 0;
    while !log.wants_compaction() {
        log.append(&[record(appended)]).unwrap();
        appended += 1;
    }
    assert!(log.len_bytes() > 1000);
    let snapshot: Vec<Record> = (0..3000).map(record).collect();
    log.compact(&snapshot).unwrap();
    assert!(!log.wants_compaction(), "a log that is all snapshot is not compacted again, however large");
    log.append(&[record(1)]).unwrap();
    drop(log);
    let (_, records) = FileLog::open(folder.path()).unwrap();
    assert_eq!(records, [snapshot, vec![record(1)]].concat());
}

/// Nothing but the log's own name is in the way here, as a full disk would be: the part is written, then must go.
#[test]
fn a_failed_compaction_leaves_no_part_and_waits_for_growth() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = FileLog::open(folder.path()).unwrap();
    log.compact_above(1000);
    while !log.wants_compaction() {
        log.append(&[record(0)]).unwrap();
    }
    let (path, part) = (folder.path().join("records.log"), folder.path().join("records.part"));
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    let snapshot: Vec<Record> = (0..10).map(record).collect();
    log.compact(&snapshot).unwrap_err();
    assert!(!part.exists());
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    let failed_at = log.len_bytes();
    while !log.wants_compaction() {
        log.append(&[record(0)]).unwrap();
    }
    assert!(log.len_bytes() > failed_at * 5 / 4);
    log.compact(&snapshot).unwrap();
    drop(log);
    assert_eq!(FileLog::open(folder.path()).unwrap().1, snapshot);
}

#[test]
fn a_second_coordinator_is_refused_until_the_first_is_gone() {
    let folder = TempDir::new().unwrap();
    let first = FileLog::open(folder.path()).unwrap();
    let refused = FileLog::open(folder.path()).unwrap_err().to_string();
    let path = folder.path().display();
    let expected =
        format!("another coordinator uses {path}; stop it first, or give this one its own data directory");
    assert_eq!(refused, expected);
    drop(first);
    FileLog::open(folder.path()).unwrap();
}

#[test]
fn a_place_that_is_no_directory_is_refused_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let refused = FileLog::open(&file).unwrap_err().to_string();
    assert!(refused.starts_with("cannot use the coordinator's data directory"), "{refused}");
    assert!(refused.ends_with("; choose a directory that this user can write to"), "{refused}");
    assert!(!refused.contains("os error"), "{refused}");
}

#[test]
fn a_write_that_fails_says_what_to_do() {
    let error = std::io::Error::from_raw_os_error(28);
    let error = LogError::Write {
        path: "/data/records.log".into(),
        reason: crate::files::reason(&error),
        fix: crate::files::fix(&error),
    };
    assert_eq!(
        error.to_string(),
        "cannot write the coordinator's log at /data/records.log: No space left on device; free some space, nothing acknowledged is lost"
    );
}
