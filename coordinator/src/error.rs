//! Errors that stop a coordinator.

use feedline_raft::files::DirectoryError;
use feedline_raft::log::LogError;

/// An error that stops a coordinator. A restart is safe once the cause is removed.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log or another coordinator contains data from another release.
    #[error("the coordinator cannot continue: {0}; run the same release on all coordinators")]
    Foreign(String),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The coordinator's task ended unexpectedly.
    #[error("the coordinator stopped: {0}; restart the coordinator; no acknowledged data is lost")]
    Stopped(String),
}
