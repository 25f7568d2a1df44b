//! Routing to a worker: which transport its client uses. The first fetch looks up the route, and a fetch after a failure
//! looks it up again.

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
use crate::local::{ReceivePath, ShmClient, Transport, boot_id};
use crate::rpc::LOCATE_DEADLINE;
use crate::wire;
use crate::wire::local_transport_client::LocalTransportClient;

/// A running or finished lookup. All fetches wait for the same lookup.
type SharedLookup = Shared<BoxFuture<'static, Result<Route, ServiceError>>>;

/// Looks up the route to a worker and caches it.
pub(super) struct Router {
    lookup: Arc<RouteLookup>,
    /// The lock is held to start, read or discard a lookup, never while one runs.
    cached: Mutex<Option<SharedLookup>>,
}

/// The inputs of a lookup.
struct RouteLookup {
    remote_name: RemoteName,
    version: u32,
    transport: Transport,
    tcp: Channel,
}

/// A route to a worker.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) channel: Channel,
    pub(super) memory: Option<Arc<ShmClient>>,
    /// How the client receives chunks.
    pub(super) via: ReceivePath,
}

impl Router {
    pub(super) fn new(remote_name: RemoteName, version: u32, transport: Transport, tcp: Channel) -> Self {
        let lookup = Arc::new(RouteLookup { remote_name, version, transport, tcp });
        Self { lookup, cached: Mutex::new(None) }
    }

    /// Returns the route. Looks up the route first if necessary. Fetches that start together share one lookup.
    ///
    /// # Errors
    /// Returns an error if the worker is unreachable, or does not offer the requested transport.
    pub(super) async fn route(&self) -> Result<Route, ServiceError> {
        let lookup = {
            let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            match cached.as_ref().filter(|lookup| is_usable(lookup)) {
                Some(lookup) => lookup.clone(),
                None => {
                    let inputs = Arc::clone(&self.lookup);
                    let lookup = async move { inputs.run().await }.boxed().shared();
                    cached.insert(lookup).clone()
                }
            }
        };
        lookup.await
    }

    /// Discards a broken route. The next fetch looks up a new route.
    pub(super) fn discard(&self) {
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether a lookup runs, or has found a route that still works. A lookup without a waiting fetch makes no progress.
fn is_usable(lookup: &SharedLookup) -> bool {
    match lookup.peek() {
        Some(found) => found.as_ref().is_ok_and(Route::is_alive),
        None => lookup.strong_count() > Some(1),
    }
}

impl RouteLookup {
    /// Finds the fastest route. If a worker does not return its sockets in time, the client uses TCP until the connection
    /// breaks.
    async fn run(&self) -> Result<Route, ServiceError> {
        let tcp = Route { channel: self.tcp.clone(), memory: None, via: ReceivePath::Tcp };
        if self.transport == Transport::Tcp {
            return Ok(tcp);
        }
        let mut client = LocalTransportClient::with_interceptor(
            self.tcp.clone(),
            VersionInterceptor::new(self.version, &Credentials::default()),
        );
        let located = tokio::time::timeout(LOCATE_DEADLINE, client.locate(wire::LocateRequest {})).await;
        let local = match located {
            Ok(Ok(endpoint)) => self.connect_local(endpoint.into_inner()).await,
            Ok(Err(status)) if status.code() == Code::Unavailable => {
                return Err(self.remote_name.error(&status));
            }
            Ok(Err(status)) => Err(format!("the worker does not offer shared memory: {}", status.message())),
            Err(_) => Err("the worker did not return its sockets in time".to_owned()),
        };
        let RemoteName { role, url, .. } = &self.remote_name;
        match local {
            Ok(route) => {
                let via = route.memory.as_ref().map_or(ReceivePath::Unix, |_| ReceivePath::Memory).name();
                tracing::info!(worker = %url, transport = via, "connected to a worker on this host without TCP");
                Ok(route)
            }
            Err(why) if self.transport == Transport::Auto => {
                tracing::debug!(worker = %url, why, "connecting to a worker over TCP");
                Ok(tcp)
            }
            Err(why) => Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "cannot reach the {role} at {url} through a local socket: {why}; use --transport auto"
                ),
            )),
        }
    }

    /// Connects to the worker's local sockets.
    async fn connect_local(&self, endpoint: wire::LocateResponse) -> Result<Route, String> {
        let host = boot_id().map_err(|error| format!("cannot read the boot id of this host: {error}"))?;
        if endpoint.boot_id != host {
            return Err("the server runs on another host".to_owned());
        }
        let channel = channel::connect_local(Path::new(&endpoint.socket)).await?;
        let wants_memory = self.transport != Transport::Unix && !endpoint.memory_socket.is_empty();
        let memory = match wants_memory {
            true => Some(ShmClient::connect(Path::new(&endpoint.memory_socket)).await),
            false => None,
        };
        let memory = match memory {
            Some(Ok(client)) => Some(Arc::new(client)),
            Some(Err(error)) if self.transport == Transport::Memory => {
                return Err(format!("cannot connect to its shared memory socket: {error}"));
            }
            None if self.transport == Transport::Memory => {
                return Err("the server does not offer shared memory".to_owned());
            }
            Some(Err(_)) | None => None,
        };
        Ok(Route { channel, memory, via: ReceivePath::Unix })
    }
}

impl Route {
    /// Whether the route still works, as far as this process knows.
    fn is_alive(&self) -> bool {
        self.memory.as_ref().is_none_or(|client| !client.is_closed())
    }
}
