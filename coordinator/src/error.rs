//! Why a coordinator cannot start or go on.

use std::path::PathBuf;

use crate::log::LogError;

/// Why a coordinator cannot start or go on. Starting changes nothing but a log's torn end; so starting again is always
/// safe once the cause is gone.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A directory cannot be used.
    #[error("cannot use {purpose} {path}: {reason}; choose a directory that this user can write to")]
    Directory {
        /// What the directory is for.
        purpose: &'static str,
        /// The directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Another coordinator uses the directory.
    #[error("another coordinator uses {path}; stop it first, or give this one its own data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A saved index of a job that is being prepared cannot be read.
    #[error("{0}")]
    Index(String),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The coordinator's task ended without being asked to.
    #[error("the coordinator stopped: {0}; start it again, nothing acknowledged is lost")]
    Stopped(String),
}
