//! Errors while a graph is built, loaded or checked.

use std::io::{self, ErrorKind};
use std::path::Path;

use feedline_sources::{NpyHeaderError, SourceError};

/// An error while a graph is built, loaded or checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A file has invalid contents at a position.
    #[error("`{file}` at byte {offset}: {reason}")]
    Corrupt {
        /// The path or URL of the file.
        file: String,
        /// The position in the file.
        offset: u64,
        /// The reason and the fix.
        reason: String,
    },
    /// A file cannot be used.
    #[error("`{file}`: {reason}")]
    File {
        /// The path or URL of the file.
        file: String,
        /// The reason and the fix.
        reason: String,
    },
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// A file in a store cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The caller has stopped the build.
    #[error("interrupted before the graph was complete; nothing was written")]
    Interrupted,
}

impl GraphError {
    /// A file that cannot be used.
    pub(crate) fn file(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::File { file: file.into(), reason: reason.into() }
    }

    /// A file with invalid contents at a position.
    pub(crate) fn corrupt(file: impl Into<String>, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { file: file.into(), offset, reason: reason.into() }
    }

    /// A file whose NumPy header cannot be used.
    pub(crate) fn header(file: impl Into<String>, error: NpyHeaderError) -> Self {
        match error.offset {
            Some(offset) => Self::corrupt(file, offset, error.reason),
            None => Self::file(file, error.reason),
        }
    }

    /// A failed call of the operating system. `action` is a verb, such as `write`.
    pub(crate) fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        let fix = match error.kind() {
            ErrorKind::NotFound => "check the path",
            ErrorKind::PermissionDenied => "check the permissions of the file and its directory",
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free disk space",
            _ => "check the disk",
        };
        let text = error.to_string();
        let reason = text.split(" (os error").next().unwrap_or_default().to_lowercase();
        Self::file(path.display().to_string(), format!("cannot {action} the file: {reason}; {fix}"))
    }
}
