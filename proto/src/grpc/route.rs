//! The way to a worker: found out once, at the first fetch, and again after it broke.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tokio::sync::Mutex;
use tonic::Code;
use tonic::transport::Channel;

use super::channel::{self, RemoteName};
use super::version::VersionInterceptor;
use crate::local::{ReceivePath, ShmClient, Transport, this_host};
use crate::wire;
use crate::wire::entrance_client::EntranceClient;

/// Longest wait for a worker to tell where its local sockets are.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Finds the way to a worker and keeps it.
pub(super) struct Router {
    peer: RemoteName,
    version: u32,
    transport: Transport,
    remote: Channel,
    found: Mutex<Option<Route>>,
}

/// A way to a worker.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) channel: Channel,
    pub(super) memory: Option<Arc<ShmClient>>,
    /// How the bytes of chunks come.
    pub(super) via: ReceivePath,
}

impl Router {
    pub(super) fn new(peer: RemoteName, version: u32, transport: Transport, remote: Channel) -> Self {
        Self { peer, version, transport, remote, found: Mutex::new(None) }
    }

    /// The way; looks for a shorter one than TCP when none is known.
    ///
    /// # Errors
    /// When the worker cannot be reached, or not by the transport that was asked for.
    pub(super) async fn route(&self) -> Result<Route, ServiceError> {
        let mut found = self.found.lock().await;
        if let Some(route) = found.as_ref().filter(|route| route.is_alive()) {
            return Ok(route.clone());
        }
        let route = self.look().await?;
        *found = Some(route.clone());
        Ok(route)
    }

    /// The way broke: it is looked for anew at the next fetch.
    pub(super) async fn forget(&self) {
        *self.found.lock().await = None;
    }

    /// Looks for the shortest way. A worker that does not answer in time is reached by TCP until that breaks.
    async fn look(&self) -> Result<Route, ServiceError> {
        let remote = Route { channel: self.remote.clone(), memory: None, via: ReceivePath::Tcp };
        if self.transport == Transport::Tcp {
            return Ok(remote);
        }
        let mut client = EntranceClient::with_interceptor(
            self.remote.clone(),
            VersionInterceptor::new(self.version, &Credentials::default()),
        );
        let answer = tokio::time::timeout(LOCATE_TIMEOUT, client.locate(wire::LocateRequest {})).await;
        let local = match answer {
            Ok(Ok(answer)) => self.enter(answer.into_inner()).await,
            Ok(Err(status)) if status.code() == Code::Unavailable => return Err(self.peer.refusal(&status)),
            Ok(Err(status)) => Err(format!("it has none: {}", status.message())),
            Err(_) => Err("it does not tell".to_owned()),
        };
        let RemoteName { role, url, .. } = &self.peer;
        match local {
            Ok(route) => {
                let via = route.memory.as_ref().map_or(ReceivePath::Unix, |_| ReceivePath::Memory).name();
                tracing::info!(worker = %url, transport = via, "a worker on this host is reached without TCP");
                Ok(route)
            }
            Err(why) if self.transport == Transport::Auto => {
                tracing::debug!(worker = %url, why, "a worker is reached by TCP");
                Ok(remote)
            }
            Err(why) => Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the {role} at {url} cannot be reached by a local socket: {why}; use --transport auto"
                ),
            )),
        }
    }

    /// Connects to the worker's local sockets.
    async fn enter(&self, place: wire::LocateResponse) -> Result<Route, String> {
        let host = this_host().map_err(|error| format!("this host does not tell its boot id: {error}"))?;
        if place.host != host {
            return Err("it runs on another host".to_owned());
        }
        let channel = channel::connect_local(Path::new(&place.socket)).await?;
        let wants_memory = self.transport != Transport::Unix && !place.memory_socket.is_empty();
        let memory = match wants_memory {
            true => Some(ShmClient::connect(Path::new(&place.memory_socket)).await),
            false => None,
        };
        let memory = match memory {
            Some(Ok(link)) => Some(Arc::new(link)),
            Some(Err(error)) if self.transport == Transport::Memory => {
                return Err(format!("its memory cannot be shared: {error}"));
            }
            None if self.transport == Transport::Memory => return Err("it shares no memory".to_owned()),
            Some(Err(_)) | None => None,
        };
        Ok(Route { channel, memory, via: ReceivePath::Unix })
    }
}

impl Route {
    /// Whether what it consists of is still there, as far as is known.
    fn is_alive(&self) -> bool {
        self.memory.as_ref().is_none_or(|link| !link.is_closed())
    }
}
