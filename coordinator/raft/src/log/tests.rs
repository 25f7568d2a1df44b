//! Tests of the log: acknowledged writes survive crashes, and corruption is an error.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use feedline_cluster::ClusterSettings;
use feedline_cluster::records::Record;
use raft::eraftpb::{Entry, HardState};
use tempfile::TempDir;

use super::*;
use crate::members::{MemberId, Members};
use crate::persisted::{LogWrite, PersistedState};
use crate::snapshot::{AppliedState, ClusterSnapshot};

fn id(number: u64) -> MemberId {
    MemberId::new(number).unwrap()
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 3, data: vec![index as u8; 20].into(), ..Entry::default() }
}

fn append(indexes: &[u64]) -> LogWrite {
    let hard_state = HardState { term: 3, vote: 7, commit: 1, ..HardState::default() };
    let entries = indexes.iter().copied().map(entry).collect();
    LogWrite::Append { number: 1, hard_state: Some(hard_state), entries }
}

fn bootstrapped() -> PersistedState {
    let members = [1, 2, 3].map(|number| (id(number), format!("http://h{number}:7070")));
    PersistedState::bootstrap(&Members(members.into()))
}

/// Writes a state, then one, two and one entries; the second entry is written twice.
fn writes() -> Vec<LogWrite> {
    let founding = LogWrite::Install { number: 1, stored: Box::new(bootstrapped()) };
    vec![founding, append(&[2]), append(&[3, 4]), append(&[3])]
}

fn after(writes: &[LogWrite]) -> PersistedState {
    let mut stored = PersistedState::default();
    writes.iter().cloned().for_each(|write| stored.apply(write));
    stored
}

fn open(folder: &TempDir) -> Result<(FileLog, PersistedState), LogError> {
    FileLog::open(folder.path(), id(9))
}

/// The bytes of a log with these writes, and the end of each write.
fn written(writes: &[LogWrite]) -> (Vec<u8>, Vec<usize>) {
    let folder = TempDir::new().unwrap();
    let (mut log, found) = open(&folder).unwrap();
    assert!(found.is_empty());
    let mut ends = vec![log.len_bytes() as usize];
    for write in writes {
        log.write(&mut vec![write.clone()]).unwrap();
        ends.push(log.len_bytes() as usize);
    }
    (fs::read(folder.path().join("records.log")).unwrap(), ends)
}

fn open_with(bytes: &[u8]) -> (TempDir, Result<(FileLog, PersistedState), LogError>) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("records.log"), bytes).unwrap();
    let opened = open(&folder);
    (folder, opened)
}

#[test]
fn a_log_truncated_at_any_byte_opens_with_its_complete_writes() {
    let (bytes, ends) = written(&writes());
    // The first state replaces the file, so a truncated file is corrupted; it is not the result of an interrupted write.
    for cut in ends[0]..ends[1] {
        let error = open_with(&bytes[..cut]).1.expect_err("a part of what was renamed whole").to_string();
        assert!(error.contains("is corrupted at byte") && error.contains("must be complete"), "{error}");
    }
    for cut in ends[1]..=bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
        let mut expected = after(&writes()[..whole]);
        let (folder, opened) = open_with(&bytes[..cut]);
        let (mut log, stored) = opened.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!((stored, log.id()), (expected.clone(), id(9)), "cut at {cut}");
        log.write(&mut vec![append(&[2])]).unwrap();
        drop(log);
        expected.apply(append(&[2]));
        assert_eq!(open(&folder).unwrap().1, expected, "cut at {cut}, then appended");
    }
}

#[test]
fn a_new_log_with_a_torn_first_write_is_created_again() {
    let bytes = frames::encode_empty_log(id(5)).unwrap();
    for cut in 0..=bytes.len() {
        let (folder, opened) = open_with(&bytes[..cut]);
        let (log, stored) = opened.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let expected = if cut == bytes.len() { id(5) } else { id(9) };
        assert_eq!((log.id(), stored.is_empty()), (expected, true), "cut at {cut}");
        drop(log);
        assert_eq!(FileLog::open(folder.path(), id(8)).unwrap().0.id(), expected, "an id is drawn once");
    }
}

#[test]
fn a_flipped_byte_is_an_error_unless_it_may_be_a_torn_write() {
    let (bytes, ends) = written(&writes());
    let last = ends[ends.len() - 2];
    for place in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 0x20;
        let (_folder, opened) = open_with(&flipped);
        match opened {
            Ok((_, stored)) => {
                assert!(place >= last, "byte {place} was flipped and nobody noticed");
                assert_eq!(stored, after(&writes()[..3]));
            }
            Err(error) => {
                assert!(place < last, "the end may always be torn, byte {place}: {error}");
                let expected = if place < frames::HEADER_BYTES {
                    "cannot be read by this release"
                } else {
                    "is corrupted at byte"
                };
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    }
}

#[test]
fn a_flipped_byte_of_a_compacted_log_is_always_an_error() {
    let compacted = LogWrite::Compact(Box::new(after(&writes())));
    let (bytes, ends) = written(&[compacted]);
    assert_eq!(ends[1], bytes.len());
    for place in frames::HEADER_BYTES..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 0x20;
        let error = open_with(&flipped).1.expect_err("nothing of it may be left out").to_string();
        assert!(error.contains("is corrupted at byte"), "byte {place}: {error}");
    }
}

#[test]
fn an_error_names_the_file_the_byte_and_the_remedy() {
    let (mut bytes, ends) = written(&writes());
    bytes[ends[1] + 12] ^= 1;
    let (folder, opened) = open_with(&bytes);
    let path = folder.path().join("records.log");
    let expected = format!(
        "the coordinator's log {} is corrupted at byte {}: frame checksum mismatch, but valid frames follow at byte {}; move the file to another directory. With several coordinators, remove this coordinator and add it again with `feedline members`; no data is lost. A single coordinator starts without its jobs, or from a backup of the file",
        path.display(),
        ends[1],
        ends[2]
    );
    assert_eq!(opened.unwrap_err().to_string(), expected);
}

#[test]
fn a_gap_between_entries_is_an_error() {
    let (bytes, _) = written(&[writes()[0].clone(), append(&[2]), append(&[4])]);
    let error = open_with(&bytes).1.unwrap_err().to_string();
    assert!(error.contains("contains entry 4 instead of entry 3"), "{error}");
}

#[test]
fn a_log_of_another_version_is_rejected_and_unchanged() {
    let mut bytes = written(&writes()).0;
    bytes[8] = 1;
    let error = open_with(&bytes).1.unwrap_err().to_string();
    assert!(error.contains("the log has format version 1, but this release reads version 3"), "{error}");
}

#[test]
fn a_batch_of_writes_has_the_effect_of_single_writes() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = open(&folder).unwrap();
    let mut together = writes();
    together.push(LogWrite::Compact(Box::new(after(&writes()))));
    together.push(append(&[4]));
    let expected = after(&together);
    log.write(&mut together).unwrap();
    assert!(together.is_empty());
    drop(log);
    assert_eq!(open(&folder).unwrap().1, expected);
}

/// The name of the log is a directory here, so the compaction fails after it has written the new file.
#[test]
fn a_failed_compaction_leaves_the_old_log_only() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = open(&folder).unwrap();
    log.write(&mut writes()).unwrap();
    let (path, part) = (folder.path().join("records.log"), folder.path().join("records.part"));
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    let compaction = LogWrite::Compact(Box::new(after(&writes())));
    log.write(&mut vec![compaction, append(&[4])]).unwrap();
    let mut install = vec![LogWrite::Install { number: 5, stored: Box::new(bootstrapped()) }, append(&[2])];
    log.write(&mut install).unwrap_err();
    assert_eq!(install.len(), 2, "what was not written can be tried again");
    assert!(!part.exists());
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    drop(log);
    let mut expected = after(&writes());
    expected.apply(append(&[4]));
    assert_eq!(open(&folder).unwrap().1, expected);
}

#[test]
fn a_directory_is_locked_while_a_coordinator_uses_it() {
    let folder = TempDir::new().unwrap();
    let first = open(&folder).unwrap();
    let refused = open(&folder).unwrap_err().to_string();
    let path = folder.path().display();
    let expected =
        format!("{path} is in use by another coordinator; stop it, or choose another data directory");
    assert_eq!(refused, expected);
    drop(first);
    open(&folder).unwrap();
}

#[test]
fn a_path_that_is_not_a_directory_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let refused = FileLog::open(&file, id(9)).unwrap_err().to_string();
    assert!(refused.starts_with("cannot use the coordinator's data directory"), "{refused}");
    assert!(refused.ends_with("; pass --data-dir with a directory that this user can write to"), "{refused}");
    assert!(!refused.contains("os error"), "{refused}");
}

#[test]
fn a_write_error_names_the_remedy() {
    let error = std::io::Error::from_raw_os_error(28);
    let error = LogError::Write {
        path: "/data/records.log".into(),
        reason: crate::files::error_reason(&error),
        fix: crate::files::write_error_fix(&error),
    };
    assert_eq!(
        error.to_string(),
        "cannot write the coordinator's log /data/records.log: No space left on device; free some disk space; no acknowledged data is lost"
    );
}

#[test]
fn only_the_owner_can_read_a_log() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("data");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (mut log, _) = FileLog::open(&folder, id(9)).unwrap();
    log.write(&mut writes()).unwrap();
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(["records.log", "lock"].map(|name| mode(&folder.join(name))), [0o600; 2]);
    log.write(&mut vec![LogWrite::Compact(Box::new(after(&writes())))]).unwrap();
    assert_eq!(mode(&folder.join("records.log")), 0o600);
    drop(log);
    fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
    FileLog::open(&folder, id(9)).unwrap();
    assert_eq!(mode(&folder), 0o750, "an existing folder keeps its mode");
}

/// Returns the names of the jobs that a snapshot contains.
fn job_names(snapshot: &ClusterSnapshot) -> Vec<&str> {
    let opened = snapshot.records.iter().filter_map(|record| match record {
        Record::Opened { spec, .. } => Some(spec.name.as_str()),
        _ => None,
    });
    opened.collect()
}

#[test]
fn a_log_and_a_snapshot_of_the_earlier_release_are_read() {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tests/golden/ef04d0d/learner/records.log");
    let folder = TempDir::new().unwrap();
    fs::copy(golden, folder.path().join("records.log")).unwrap();
    let (_, stored) = open(&folder).unwrap();
    assert!(stored.entries.is_empty(), "the member was stopped before it received entries");
    let snapshot = ClusterSnapshot::from_bytes(&stored.snapshot.data).unwrap();
    let urls: Vec<&str> = snapshot.members.0.values().map(String::as_str).collect();
    assert_eq!(urls, ["http://127.0.0.1:7471", "http://127.0.0.1:7472"]);
    assert_eq!(job_names(&snapshot), ["snapshot-3fd43a61", "second-d155aaa7"]);
    let mut state = AppliedState::new(ClusterSettings::default());
    state.install(stored.snapshot.get_metadata().index, &stored.snapshot.data).unwrap();
    assert_eq!(job_names(&state.snapshot()), job_names(&snapshot), "both jobs are in the state");
}
