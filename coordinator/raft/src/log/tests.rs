//! The log keeps what was acknowledged through crashes, and says so where it cannot.

use std::fs;

use raft::eraftpb::{Entry, HardState};
use tempfile::TempDir;

use super::*;
use crate::members::{MemberId, Members};
use crate::persisted::{LogWrite, PersistedState};

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

fn founded() -> PersistedState {
    let members = [1, 2, 3].map(|number| (id(number), format!("http://h{number}:7070")));
    PersistedState::founded_by(&Members(members.into()))
}

/// Writes of a state, of one, two and one entries; the second entry is written twice.
fn writes() -> Vec<LogWrite> {
    let founding = LogWrite::Install { number: 1, stored: Box::new(founded()) };
    vec![founding, append(&[2]), append(&[3, 4]), append(&[3])]
}

fn after(writes: &[LogWrite]) -> PersistedState {
    let mut stored = PersistedState::default();
    writes.iter().cloned().for_each(|write| stored.take(write));
    stored
}

fn open(folder: &TempDir) -> Result<(FileLog, PersistedState), LogError> {
    FileLog::open(folder.path(), id(9))
}

/// The bytes of a log with these writes, and where each ends.
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
fn a_log_cut_at_any_byte_opens_with_its_whole_writes_and_goes_on() {
    let (bytes, ends) = written(&writes());
    // What founds a member replaces the file: a part of it is damage, not a write that was cut short.
    for cut in ends[0]..ends[1] {
        let error = open_with(&bytes[..cut]).1.expect_err("a part of what was renamed whole").to_string();
        assert!(error.contains("is damaged at byte") && error.contains("were written at once"), "{error}");
    }
    for cut in ends[1]..=bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
        let mut expected = after(&writes()[..whole]);
        let (folder, opened) = open_with(&bytes[..cut]);
        let (mut log, stored) = opened.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!((stored, log.id()), (expected.clone(), id(9)), "cut at {cut}");
        log.write(&mut vec![append(&[2])]).unwrap();
        drop(log);
        expected.take(append(&[2]));
        assert_eq!(open(&folder).unwrap().1, expected, "cut at {cut}, then appended");
    }
}

#[test]
fn a_new_log_whose_first_write_was_cut_short_is_begun_anew() {
    let bytes = frames::empty(id(5)).unwrap();
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
fn a_flipped_byte_is_refused_unless_it_may_be_a_torn_end() {
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
                    "is no log of this release"
                } else {
                    "is damaged at byte"
                };
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    }
}

#[test]
fn a_flipped_byte_of_a_compacted_log_is_never_a_torn_end() {
    let compacted = LogWrite::Compact(Box::new(after(&writes())));
    let (bytes, ends) = written(&[compacted]);
    assert_eq!(ends[1], bytes.len());
    for place in frames::HEADER_BYTES..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 0x20;
        let error = open_with(&flipped).1.expect_err("nothing of it may be left out").to_string();
        assert!(error.contains("is damaged at byte"), "byte {place}: {error}");
    }
}

#[test]
fn damage_names_the_file_the_byte_and_what_to_do() {
    let (mut bytes, ends) = written(&writes());
    bytes[ends[1] + 12] ^= 1;
    let (folder, opened) = open_with(&bytes);
    let path = folder.path().join("records.log");
    let expected = format!(
        "the coordinator's log {} is damaged at byte {}: its checksum is wrong, and intact records follow from byte {}; move it away: one coordinator of several is then removed and added again with `feedline members`, which loses nothing; a single one starts without the jobs that the log holds, or from a copy, with what was decided since then forgotten",
        path.display(),
        ends[1],
        ends[2]
    );
    assert_eq!(opened.unwrap_err().to_string(), expected);
}

#[test]
fn entries_that_do_not_follow_each_other_are_damage() {
    let (bytes, _) = written(&[writes()[0].clone(), append(&[2]), append(&[4])]);
    let error = open_with(&bytes).1.unwrap_err().to_string();
    assert!(error.contains("entry 4 stands where entry 3 belongs"), "{error}");
}

#[test]
fn a_log_of_another_format_is_left_alone() {
    let mut bytes = written(&writes()).0;
    bytes[8] = 1;
    let error = open_with(&bytes).1.unwrap_err().to_string();
    assert!(error.contains("its format is version 1, this release reads version 3"), "{error}");
}

#[test]
fn many_writes_at_once_are_as_one_after_the_other() {
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

/// Nothing but the log's own name is in the way here, as a full disk would be: the part is written, then must go.
#[test]
fn a_failed_compaction_leaves_the_log_and_no_part() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = open(&folder).unwrap();
    log.write(&mut writes()).unwrap();
    let (path, part) = (folder.path().join("records.log"), folder.path().join("records.part"));
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    let compaction = LogWrite::Compact(Box::new(after(&writes())));
    log.write(&mut vec![compaction, append(&[4])]).unwrap();
    let mut install = vec![LogWrite::Install { number: 5, stored: Box::new(founded()) }, append(&[2])];
    log.write(&mut install).unwrap_err();
    assert_eq!(install.len(), 2, "what was not written can be tried again");
    assert!(!part.exists());
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    drop(log);
    let mut expected = after(&writes());
    expected.take(append(&[4]));
    assert_eq!(open(&folder).unwrap().1, expected);
}

#[test]
fn a_second_coordinator_is_refused_until_the_first_is_gone() {
    let folder = TempDir::new().unwrap();
    let first = open(&folder).unwrap();
    let refused = open(&folder).unwrap_err().to_string();
    let path = folder.path().display();
    let expected =
        format!("another coordinator uses {path}; stop it first, or give this one its own data directory");
    assert_eq!(refused, expected);
    drop(first);
    open(&folder).unwrap();
}

#[test]
fn a_place_that_is_no_directory_is_refused_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let refused = FileLog::open(&file, id(9)).unwrap_err().to_string();
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
