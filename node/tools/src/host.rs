//! The interface between a tool and the process that runs it.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_client::WorkerDirectory;
use feedline_command::Failure;
use feedline_data::ids::SessionId;
use feedline_proto::CoordinatorService;

/// The process that runs a tool.
#[async_trait]
pub trait ToolHost: Send + Sync {
    /// Returns the number of cores that this process may use.
    fn cores(&self) -> u32;

    /// Returns the id of a new session, which supersedes all sessions returned before.
    fn next_session(&self) -> SessionId;

    /// Connects to the coordinators at these URLs, and waits a few seconds for a leader.
    ///
    /// # Errors
    /// Returns an error if no coordinator answers.
    async fn connect(
        &self,
        urls: &[String],
        credentials: &Credentials,
    ) -> Result<Arc<dyn CoordinatorService>, Failure>;

    /// Starts a coordinator and one worker with `cores` cores in this process. Indexes and caches are in `folder`.
    ///
    /// # Errors
    /// Returns an error if a role cannot be started.
    async fn start_cluster(&self, cores: u32, folder: &Path) -> Result<Box<dyn EmbeddedCluster>, Failure>;
}

/// A coordinator and workers in this process.
#[async_trait]
pub trait EmbeddedCluster: Send + Sync {
    /// Returns the coordinator.
    fn coordinator(&self) -> Arc<dyn CoordinatorService>;

    /// Returns the directory that resolves worker addresses.
    fn directory(&self) -> Arc<dyn WorkerDirectory>;

    /// Stops all roles.
    async fn shutdown(self: Box<Self>);
}
