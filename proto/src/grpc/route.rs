//! The route to a worker: looked up at the first fetch, and again after it broke.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tonic::Code;
use tonic::transport::Channel;

use super::channel::{self, RemoteName};
use super::version::VersionInterceptor;
use crate::local::{ReceivePath, ShmClient, Transport, this_host};
use crate::rpc::LOCATE_DEADLINE;
use crate::wire;
use crate::wire::entrance_client::EntranceClient;

/// A lookup that is running or done, and that every fetch waits for.
type SharedLookup = Shared<BoxFuture<'static, Result<Route, ServiceError>>>;

/// Looks up the route to a worker and caches it.
pub(super) struct Router {
    lookup: Arc<RouteLookup>,
    /// Locked only to start, read or forget a lookup, and never while one runs.
    found: Mutex<Option<SharedLookup>>,
}

/// What a lookup needs.
struct RouteLookup {
    peer: RemoteName,
    version: u32,
    transport: Transport,
    remote: Channel,
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
        let lookup = Arc::new(RouteLookup { peer, version, transport, remote });
        Self { lookup, found: Mutex::new(None) }
    }

    /// The route; looks for a shorter one than TCP when none is known. Fetches that start together share one lookup.
    ///
    /// # Errors
    /// When the worker cannot be reached, or not by the transport that was asked for.
    pub(super) async fn route(&self) -> Result<Route, ServiceError> {
        let lookup = {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            match found.as_ref().filter(|lookup| is_usable(lookup)) {
                Some(lookup) => lookup.clone(),
                None => {
                    let parts = Arc::clone(&self.lookup);
                    let lookup = async move { parts.look().await }.boxed().shared();
                    found.insert(lookup).clone()
                }
            }
        };
        lookup.await
    }

    /// The route broke: the next fetch looks it up again.
    pub(super) fn forget(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether a lookup runs, or has found a route that is alive. One that nobody waits for any more stands still.
fn is_usable(lookup: &SharedLookup) -> bool {
    match lookup.peek() {
        Some(found) => found.as_ref().is_ok_and(Route::is_alive),
        None => lookup.strong_count() > Some(1),
    }
}

impl RouteLookup {
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
        let answer = tokio::time::timeout(LOCATE_DEADLINE, client.locate(wire::LocateRequest {})).await;
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
