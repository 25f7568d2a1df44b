//! The log of a member on disk: one file, and a lock that excludes a second process.
//!
//! Several appends share one write and one `fdatasync`. A snapshot is written to a separate file, which then replaces the log.
//! `raft-engine` needs several files for this and does not tell a torn write from damage in the middle of the log.

mod file;
mod frames;

use std::path::PathBuf;

pub use self::file::FileLog;
use crate::files::DirectoryError;

/// The log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A write failed. The log is as before, and the write can be repeated.
    #[error("cannot write the coordinator's log at {path}: {reason}; {fix}, nothing acknowledged is lost")]
    Write {
        /// The log file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
        /// The remedy.
        fix: &'static str,
    },
    /// The log cannot be read.
    #[error("cannot read the coordinator's log at {path}: {reason}; check the disk and the file's owner")]
    Read {
        /// The log file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// An acknowledged write is damaged.
    #[error(
        "the coordinator's log {path} is damaged at byte {offset}: {what}; move the file away. Of several coordinators, remove this one and add it again with `feedline members`, which loses nothing. A single coordinator starts without its jobs, or from a backup of the file"
    )]
    Damaged {
        /// The log file.
        path: PathBuf,
        /// First byte of the damaged frame.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// The file is not a log, or a log of another release.
    #[error(
        "{path} is not a log of this release: {what}; start the release that wrote it, or choose another data directory"
    )]
    Foreign {
        /// The log file.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another process uses the directory.
    #[error("another coordinator uses {path}; stop it, or choose another data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

/// Decodes `bytes` as a log, and as a frame with a correct checksum.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(bytes: &[u8]) {
    frames::read_anything(bytes);
}

/// A log, and the body of one of its frames.
#[cfg(feature = "fuzzing")]
pub(crate) fn samples(id: crate::MemberId, stored: &crate::PersistedState) -> [Vec<u8>; 2] {
    frames::samples(id, stored).expect("a small log can be encoded")
}

#[cfg(test)]
mod tests;
