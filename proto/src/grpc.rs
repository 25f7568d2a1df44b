//! The services over gRPC: clients that are a service to their caller, and servers around a service.

mod channel;
mod coordinator_client;
mod coordinator_server;
mod entrance_server;
mod fetch_client;
mod fetch_server;
mod framing;
mod link;
mod refusal;
mod route;
mod serve;
mod version;
mod worker_client;

use std::sync::Arc;
use std::time::Duration;

use feedline_core::cluster::messages::Refusal;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

use self::channel::Peer;
pub use self::serve::{serve, serve_entrance};
pub use self::worker_client::OnReceived;
use crate::PROTOCOL_VERSION;
use crate::local::{Entrance, Transport};
use crate::services::{CoordinatorService, WorkerService};
use crate::wire::coordinator_server::CoordinatorServer;
use crate::wire::entrance_server::EntranceServer;

/// Time to connect to a peer before it counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the answer to a unary request, or for the next part of a manifest.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pings go out this often, also on idle connections, so that a dead peer is noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// A peer that leaves a ping unanswered for this long is dead.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Bytes in flight on a stream and on a connection: tonic's default halves the throughput.
const WINDOW_BYTES: u32 = 16 << 20;
/// Largest HTTP/2 frame that is taken in; the receiver's value rules the sender.
const MAX_FRAME_BYTES: u32 = 1 << 20;
/// Largest message to and from a worker.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Largest message to and from a coordinator: the listing of a dataset of millions of files is one message.
const MAX_CONTROL_BYTES: usize = 512 << 20;
/// Streams on one connection: a consumer fetches a few splits at a time, a node makes a few control requests.
const MAX_STREAMS: u32 = 1024;
/// Path of the one method of the worker's service.
const FETCH_PATH: &str = "/feedline.v1.Worker/Fetch";
/// A chunk of a batch is cut to this, so that it stays in the cache on its way.
const MAX_CHUNK_BYTES: usize = 512 << 10;
/// A part of a manifest.
const MANIFEST_CHUNK_BYTES: usize = 1 << 20;

/// The coordinator at `url`, such as `http://10.0.0.1:7070`. Connects at the first request and again whenever the
/// connection is lost. Must be called inside a tokio runtime.
///
/// # Errors
/// `Invalid` for an address that cannot be one. An unreachable coordinator shows at the first request.
pub fn connect_coordinator(url: &str) -> Result<Arc<dyn CoordinatorService>, Refusal> {
    connect_coordinator_with_version(url, PROTOCOL_VERSION)
}

/// As [`connect_coordinator`], speaking this version of the protocol.
///
/// # Errors
/// As [`connect_coordinator`].
pub fn connect_coordinator_with_version(
    url: &str,
    version: u32,
) -> Result<Arc<dyn CoordinatorService>, Refusal> {
    let peer = Peer { role: "coordinator", url: url.into() };
    let channel = channel::connect_lazily(&peer)?;
    Ok(Arc::new(coordinator_client::RemoteCoordinator::new(peer, channel, version)))
}

/// The worker at `url`, such as `http://10.0.0.7:7071`, by the shortest way that there is. Connects at the first request
/// and again whenever the connection is lost. Must be called inside a tokio runtime.
///
/// # Errors
/// `Invalid` for an address that cannot be one. An unreachable worker shows at the first request.
pub fn connect_worker(url: &str) -> Result<Arc<dyn WorkerService>, Refusal> {
    connect_worker_by(url, Transport::Auto, |_, _| {})
}

/// As [`connect_worker`], by this transport. `on_received` hears of bytes of batches as they come.
///
/// # Errors
/// As [`connect_worker`].
pub fn connect_worker_by(
    url: &str,
    transport: Transport,
    on_received: OnReceived,
) -> Result<Arc<dyn WorkerService>, Refusal> {
    let peer = Peer { role: "worker", url: url.into() };
    let channel = channel::connect_lazily(&peer)?;
    Ok(Arc::new(worker_client::RemoteWorker::new(peer, channel, PROTOCOL_VERSION, transport, on_received)))
}

/// As [`connect_worker`], speaking this version of the protocol.
///
/// # Errors
/// As [`connect_worker`].
pub fn connect_worker_with_version(url: &str, version: u32) -> Result<Arc<dyn WorkerService>, Refusal> {
    let peer = Peer { role: "worker", url: url.into() };
    let channel = channel::connect_lazily(&peer)?;
    Ok(Arc::new(worker_client::RemoteWorker::new(peer, channel, version, Transport::Auto, |_, _| {})))
}

/// A coordinator's gRPC routes, for [`serve`]. Further HTTP routes can be put beside them through
/// [`Routes::into_axum_router`].
pub fn coordinator_routes(service: Arc<dyn CoordinatorService>) -> Routes {
    let server = CoordinatorServer::new(coordinator_server::CoordinatorAdapter(service))
        .max_decoding_message_size(MAX_CONTROL_BYTES)
        .max_encoding_message_size(MAX_CONTROL_BYTES);
    Routes::new(InterceptedService::new(server, version::Demand { role: "coordinator" }))
}

/// A worker's gRPC routes, for [`serve`]. Further HTTP routes can be put beside them through
/// [`Routes::into_axum_router`].
pub fn worker_routes(service: Arc<dyn WorkerService>) -> Routes {
    let server = fetch_server::FetchServer { service, lender: None };
    Routes::new(InterceptedService::new(server, version::Demand { role: "worker" }))
}

/// As [`worker_routes`], telling clients on the same host of the entrance. The same routes serve TCP and the entrance.
pub fn worker_routes_with(service: Arc<dyn WorkerService>, entrance: &Entrance) -> Routes {
    let lender = entrance.memory.as_ref().map(|(_, lender)| Arc::clone(lender));
    let fetches = fetch_server::FetchServer { service, lender };
    let places = EntranceServer::new(entrance_server::EntranceAdapter(entrance.place.clone()));
    let demand = version::Demand { role: "worker" };
    Routes::new(InterceptedService::new(fetches, demand.clone()))
        .add_service(InterceptedService::new(places, demand))
}

#[cfg(test)]
mod tests;
