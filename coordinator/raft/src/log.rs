//! The log of a member on disk: one file, and a lock against a second process.
//!
//! Several appends share one write and one `fdatasync`. A snapshot is written to a separate file, which then replaces the
//! log. The crate `raft-engine` needs several files and does not distinguish a torn write from corruption in the middle of a
//! log.

mod file;
mod frames;

use std::path::PathBuf;

pub use self::file::FileLog;
use crate::files::DirectoryError;

/// An error that occurs when a log is read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A write failed. The log is unchanged, and the write can be retried.
    #[error("cannot write the coordinator's log {path}: {reason}; {fix}; no acknowledged data is lost")]
    Write {
        /// The log file.
        path: PathBuf,
        /// The reason reported by the operating system.
        reason: String,
        /// How to fix the problem.
        fix: &'static str,
    },
    /// The log cannot be read.
    #[error("cannot read the coordinator's log {path}: {reason}; check the disk and the file's owner")]
    Read {
        /// The log file.
        path: PathBuf,
        /// The reason reported by the operating system.
        reason: String,
    },
    /// An acknowledged write is corrupted.
    #[error(
        "the coordinator's log {path} is corrupted at byte {offset}: {damage}; move the file to another directory. With several coordinators, remove this coordinator and add it again with `feedline members`; no data is lost. A single coordinator starts without its jobs, or from a backup of the file"
    )]
    Damaged {
        /// The log file.
        path: PathBuf,
        /// Offset of the corrupted frame.
        offset: u64,
        /// A description of the corruption.
        damage: String,
    },
    /// The file is not a log, or was written by another release.
    #[error(
        "{path} cannot be read by this release: {difference}; start the release that wrote it, or choose another data directory"
    )]
    Foreign {
        /// The log file.
        path: PathBuf,
        /// How the file differs from a log of this release.
        difference: String,
    },
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another process uses the directory.
    #[error("{path} is in use by another coordinator; stop it, or choose another data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

/// Decodes `bytes` as a log, and as the body of a frame.
pub(crate) fn read_anything(bytes: &[u8]) {
    frames::read_anything(bytes);
}

/// A log, and the body of one of its frames.
pub(crate) fn samples(id: crate::MemberId, stored: &crate::PersistedState) -> [Vec<u8>; 2] {
    frames::samples(id, stored).expect("a small log can be encoded")
}

#[cfg(test)]
mod tests;
