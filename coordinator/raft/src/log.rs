//! A member's log on disk: one file, beside a lock that keeps a second process out.
//!
//! Several appends share one write and one `fdatasync`. What stands for more than was appended, a snapshot, is written to a
//! file of its own, which then becomes the log. `raft-engine` would do the same with several files and without the check
//! of what follows damage; a log that fits in memory needs neither.

mod file;
mod frames;

use std::path::PathBuf;

pub use self::file::FileLog;
use crate::files::DirectoryError;

/// Why the log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be written. Nothing of what was to be appended remains; appending it again is safe.
    #[error("cannot write the coordinator's log at {path}: {reason}; {fix}, nothing acknowledged is lost")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
        /// What to do.
        fix: &'static str,
    },
    /// It cannot be read.
    #[error("cannot read the coordinator's log at {path}: {reason}; check the disk and the file's owner")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Something that had been acknowledged is damaged.
    #[error(
        "the coordinator's log {path} is damaged at byte {offset}: {what}; move it away: one coordinator of several is then removed and added again with `feedline members`, which loses nothing; a single one starts without the jobs that the log holds, or from a copy, with what was decided since then forgotten"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First byte of the damaged frame.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// It is no log, or one of another release.
    #[error(
        "{path} is no log of this release: {what}; start the release that wrote it, or choose another data directory"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is there instead.
        what: String,
    },
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another process has it.
    #[error("another coordinator uses {path}; stop it first, or give this one its own data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

/// Reads `bytes` as a log, and as a frame of one whose checksum is right.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(bytes: &[u8]) {
    frames::read_anything(bytes);
}

/// A log, and what a frame of one holds.
#[cfg(feature = "fuzzing")]
pub(crate) fn samples(id: crate::MemberId, stored: &crate::PersistedState) -> [Vec<u8>; 2] {
    frames::samples(id, stored).expect("a small log has a form")
}

#[cfg(test)]
mod tests;
