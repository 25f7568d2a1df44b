//! Implements the host of the developers' tools, which run in this process.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_client::WorkerDirectory;
use feedline_data::ids::SessionId;
use feedline_proto::CoordinatorService;
use feedline_tools::{EmbeddedCluster, ToolHost};

use crate::cli::{AccessArgs, CacheArgs, LocalArgs, SwitchArg};
use crate::cluster::{self, LocalCluster};
use crate::failure::Failure;
use crate::{entropy, environment};

/// The process of `feedline`, as the host of the tools.
pub(crate) struct NodeToolHost;

#[async_trait]
impl ToolHost for NodeToolHost {
    fn cores(&self) -> u32 {
        environment::cores()
    }

    fn next_session(&self) -> SessionId {
        entropy::session_id()
    }

    async fn connect(
        &self,
        urls: &[String],
        credentials: &Credentials,
    ) -> Result<Arc<dyn CoordinatorService>, Failure> {
        cluster::connect(urls, credentials).await
    }

    async fn start_cluster(&self, cores: u32, folder: &Path) -> Result<Box<dyn EmbeddedCluster>, Failure> {
        let local = LocalArgs {
            workers: 1,
            cores: Some(cores),
            index_dir: Some(folder.join("index")),
            cache: CacheArgs { cache_dir: Some(folder.join("cache")), ..CacheArgs::default() },
            ..LocalArgs::default()
        };
        Ok(Box::new(LocalCluster::open(&[], &AccessArgs::default(), (&local, SwitchArg::Off)).await?))
    }
}

#[async_trait]
impl EmbeddedCluster for LocalCluster {
    fn coordinator(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.coordinator)
    }

    fn directory(&self) -> Arc<dyn WorkerDirectory> {
        Self::directory(self)
    }

    async fn shutdown(self: Box<Self>) {
        Self::shutdown(*self).await;
    }
}
