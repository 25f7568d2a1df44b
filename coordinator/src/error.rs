//! Why a coordinator cannot start or go on.

use feedline_raft::files::DirectoryError;
use feedline_raft::log::LogError;

/// Why a coordinator cannot start or go on. Starting changes nothing but a log's torn end; so starting again is always
/// safe once the cause is gone.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log, or another coordinator, says what this release does not understand.
    #[error("the coordinator cannot go on: {0}; run the same release on all coordinators")]
    Foreign(String),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The coordinator's task ended without being asked to.
    #[error("the coordinator stopped: {0}; start it again, nothing acknowledged is lost")]
    Stopped(String),
}
