//! The log of decisions: what the coordinator knows again after a restart.

mod file;
mod frames;

use std::path::PathBuf;

use feedline_core::cluster::records::Record;

pub(crate) use self::file::FileLog;

/// Why the log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be written. Nothing of the records remains; appending them again is safe.
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
        "the coordinator's log {path} is damaged at byte {offset}: {what}; restore it from a copy, or move it away to start without the jobs it holds"
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
}

/// Where decisions are kept.
pub(crate) trait RecordLog: Send + 'static {
    /// Appends records, durably and all at once. After an error none of them is in the log, and they can be appended
    /// again.
    fn append(&mut self, records: &[Record]) -> Result<(), LogError>;

    /// Size in bytes.
    fn len_bytes(&self) -> u64;

    /// Whether it has grown enough to be worth compacting, since it was opened or since compacting it failed.
    fn wants_compaction(&self) -> bool;

    /// Replaces everything in it by `snapshot`. After an error it is as before, and takes no more space.
    fn compact(&mut self, snapshot: &[Record]) -> Result<(), LogError>;
}

/// For the embedded mode: jobs end with the process, so nothing is kept.
#[derive(Debug)]
pub(crate) struct MemoryLog;

impl RecordLog for MemoryLog {
    fn append(&mut self, _records: &[Record]) -> Result<(), LogError> {
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        0
    }

    fn wants_compaction(&self) -> bool {
        false
    }

    fn compact(&mut self, _snapshot: &[Record]) -> Result<(), LogError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
