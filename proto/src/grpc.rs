//! The services over gRPC: clients that are a service to their caller, and servers around a service.

mod auth_service;
mod caller_service;
mod channel;
mod coordinator_client;
mod coordinator_server;
mod coordinators;
mod fetch_client;
mod fetch_server;
mod framing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod link;
mod local_listener_server;
mod peer_client;
mod peer_server;
mod pending_fetches;
mod refusal;
mod route;
mod serve;
mod version;
mod worker_client;

use std::sync::Arc;
use std::time::Duration;

use feedline_access::Credentials;
use feedline_data::messages::ServiceError;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

pub use self::auth_service::{AuthService, entered};
pub use self::caller_service::CallerService;
use self::channel::RemoteName;
pub use self::refusal::to_status;
pub use self::serve::{serve, serve_entrance, serve_tls};
use self::version::VersionInterceptor;
pub use self::version::shown_token;
pub use self::worker_client::OnReceived;
use crate::PROTOCOL_VERSION;
use crate::authenticator::{AllowAll, Authenticator, Authenticators};
use crate::local::{LocalListener, Transport};
pub use crate::rpc::REPORT_PATIENCE;
use crate::rpc::{INDEX_DEADLINE, MAX_CONTROL_BYTES, MessageSize};
use crate::services::{CoordinatorService, PeerService, WorkerService};
use crate::wire::coordinator_server::CoordinatorServer;
use crate::wire::entrance_server::EntranceServer;
use crate::wire::members_server::MembersServer;
use crate::wire::peer_server::PeerServer;

/// Time to connect to a peer before it counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pings go out this often, also on idle connections, so that a dead peer is noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// A peer that leaves a ping unanswered for this long is dead.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Bytes in flight on a stream and on a connection: tonic's default halves the throughput.
const WINDOW_BYTES: u32 = 16 << 20;
/// Largest HTTP/2 frame that is taken in; the receiver's value rules the sender.
const MAX_FRAME_BYTES: u32 = 1 << 20;
/// Streams on one connection: a consumer fetches a few splits at a time, a node makes a few control requests.
const MAX_STREAMS: u32 = 1024;
/// A chunk of a batch is cut to this, so that it stays in the cache on its way.
const MAX_CHUNK_BYTES: usize = 512 << 10;
/// A part of a manifest.
const MANIFEST_CHUNK_BYTES: usize = 1 << 20;

/// The coordinator at `url`, such as `http://10.0.0.1:7070`. Connects at the first request and again whenever the
/// connection is lost. Must be called inside a tokio runtime.
///
/// # Errors
/// `Invalid` for an address that cannot be one, and where a token would be sent for everybody to read. An unreachable
/// coordinator shows at the first request.
pub fn connect_coordinator(
    url: &str,
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    connect_coordinator_with_version(url, credentials, PROTOCOL_VERSION)
}

/// The cluster of which these are coordinators: requests go to the one that leads, and to another once that one does not
/// answer any more. One address is enough; the others are learnt.
///
/// # Errors
/// As [`connect_coordinator`].
pub fn connect_coordinators(
    urls: &[String],
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    Ok(Arc::new(coordinators::FailoverCoordinator::new(urls, credentials)?))
}

/// The coordinator at `url`, as another one sees it. Must be called inside a tokio runtime.
///
/// # Errors
/// As [`connect_coordinator`].
pub fn connect_peer(url: &str, credentials: &Credentials) -> Result<Arc<dyn PeerService>, ServiceError> {
    let peer = RemoteName::new("coordinator", url, credentials);
    let channel = channel::connect_lazily_within(&peer, credentials, INDEX_DEADLINE)?;
    Ok(Arc::new(peer_client::RemotePeer::new(
        peer,
        channel,
        VersionInterceptor::new(PROTOCOL_VERSION, credentials),
    )))
}

/// As [`connect_coordinator`], speaking this version of the protocol.
///
/// # Errors
/// As [`connect_coordinator`].
pub fn connect_coordinator_with_version(
    url: &str,
    credentials: &Credentials,
    version: u32,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    let peer = RemoteName::new("coordinator", url, credentials);
    let channel = channel::connect_lazily(&peer, credentials)?;
    Ok(Arc::new(coordinator_client::RemoteCoordinator::new(
        peer,
        channel,
        VersionInterceptor::new(version, credentials),
    )))
}

/// The worker at `url`, such as `http://10.0.0.7:7071`, by the shortest way that there is. Connects at the first request
/// and again whenever the connection is lost. Must be called inside a tokio runtime.
///
/// # Errors
/// `Invalid` for an address that cannot be one. An unreachable worker shows at the first request.
pub fn connect_worker(url: &str, credentials: &Credentials) -> Result<Arc<dyn WorkerService>, ServiceError> {
    connect_worker_by(url, credentials, Transport::Auto, |_, _| {})
}

/// As [`connect_worker`], by this transport. The token is not shown: workers ask for tickets. `on_received` hears of bytes of batches as they come.
///
/// # Errors
/// As [`connect_worker`].
pub fn connect_worker_by(
    url: &str,
    credentials: &Credentials,
    transport: Transport,
    on_received: OnReceived,
) -> Result<Arc<dyn WorkerService>, ServiceError> {
    let peer = RemoteName::new("worker", url, credentials);
    let shown = Credentials { token: None, ..credentials.clone() };
    let channel = channel::connect_lazily(&peer, &shown)?;
    Ok(Arc::new(worker_client::RemoteWorker::new(peer, channel, PROTOCOL_VERSION, transport, on_received)))
}

/// As [`connect_worker`], speaking this version of the protocol.
///
/// # Errors
/// As [`connect_worker`].
pub fn connect_worker_with_version(url: &str, version: u32) -> Result<Arc<dyn WorkerService>, ServiceError> {
    let peer = RemoteName::new("worker", url, &Credentials::default());
    let channel = channel::connect_lazily(&peer, &Credentials::default())?;
    Ok(Arc::new(worker_client::RemoteWorker::new(peer, channel, version, Transport::Auto, |_, _| {})))
}

/// A coordinator's gRPC routes, for [`serve`], open to everybody. Further HTTP routes can be put beside them through
/// [`Routes::into_axum_router`].
pub fn coordinator_routes(service: Arc<dyn CoordinatorService>) -> Routes {
    door_routes(Arc::new(AllowAll(service)))
}

fn door_routes(door: Arc<dyn Authenticator<dyn CoordinatorService>>) -> Routes {
    let adapter = Arc::new(coordinator_server::CoordinatorAdapter);
    let members = of_coordinator(Arc::clone(&door), |most_bytes| {
        MembersServer::from_arc(Arc::clone(&adapter)).max_decoding_message_size(most_bytes)
    });
    let coordinator = of_coordinator(door, |most_bytes| {
        CoordinatorServer::from_arc(Arc::clone(&adapter))
            .max_decoding_message_size(most_bytes)
            .max_encoding_message_size(MAX_CONTROL_BYTES)
    });
    Routes::new(coordinator).add_service(members)
}

/// A service of a coordinator behind its door, for clients of this release.
fn of_coordinator<S: ?Sized, I>(
    door: Arc<dyn Authenticator<S>>,
    service: impl Fn(usize) -> I,
) -> CallerService<AuthService<S, I>> {
    CallerService(AuthService::new(door, Some("coordinator"), service))
}

/// A service of another protocol behind a door, to be put beside a coordinator's routes: its methods find with [`entered`]
/// what whoever asks may use. `service` makes it for messages of at most so many bytes.
pub fn behind<S: ?Sized, I>(
    door: Arc<dyn Authenticator<S>>,
    service: impl Fn(usize) -> I,
) -> CallerService<AuthService<S, I>> {
    CallerService(AuthService::new(door, None, service))
}

/// As [`coordinator_routes`], with the service for other coordinators, both behind their authenticators.
pub fn member_routes(doors: Authenticators) -> Routes {
    let peers = Arc::new(peer_server::PeerAdapter);
    let peers = of_coordinator(doors.peer, |most_bytes| {
        PeerServer::from_arc(Arc::clone(&peers))
            .max_decoding_message_size(most_bytes)
            .max_encoding_message_size(MAX_CONTROL_BYTES)
    });
    door_routes(doors.coordinator).add_service(peers)
}

/// A worker's gRPC routes, for [`serve`]. Further HTTP routes can be put beside them through
/// [`Routes::into_axum_router`].
pub fn worker_routes(service: Arc<dyn WorkerService>) -> Routes {
    let server = fetch_server::FetchServer::new(service, None);
    Routes::new(CallerService(InterceptedService::new(server, version::VersionCheck { role: "worker" })))
}

/// As [`worker_routes`], telling clients on the same host of the entrance. The same routes serve TCP and the entrance.
pub fn worker_routes_with(service: Arc<dyn WorkerService>, entrance: &LocalListener) -> Routes {
    let lender = entrance.memory.as_ref().map(|(_, lender)| Arc::clone(lender));
    let fetches = fetch_server::FetchServer::new(service, lender);
    let places = EntranceServer::new(local_listener_server::LocalListenerAdapter(entrance.place.clone()))
        .max_decoding_message_size(MessageSize::Small.bytes());
    let demand = version::VersionCheck { role: "worker" };
    Routes::new(CallerService(InterceptedService::new(fetches, demand.clone())))
        .add_service(InterceptedService::new(places, demand))
}

#[cfg(test)]
mod tests;
