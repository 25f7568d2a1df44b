//! The gRPC routes of a coordinator and of a worker.

use std::sync::Arc;

use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

use super::auth_service::AuthService;
use super::caller_service::CallerService;
use super::coordinator_server::CoordinatorAdapter;
use super::fetch_server::FetchServer;
use super::local_listener_server::LocalListenerAdapter;
use super::peer_server::PeerAdapter;
use super::version::VersionCheck;
use crate::PROTOCOL_VERSION;
use crate::authenticator::{AllowAll, Authenticator, Authenticators};
use crate::local::LocalListener;
use crate::rpc::{self, MAX_CONTROL_BYTES};
use crate::services::{CoordinatorService, WorkerService};
use crate::wire::coordinator_server::CoordinatorServer;
use crate::wire::local_transport_server::LocalTransportServer;
use crate::wire::members_server::MembersServer;
use crate::wire::peer_server::PeerServer;

/// The check of the protocol version of requests to a worker.
const WORKER_VERSION_CHECK: VersionCheck = VersionCheck { role: "worker", version: PROTOCOL_VERSION };

/// The routes of a coordinator that serves every caller. [`Routes::into_axum_router`] adds further HTTP routes.
pub fn coordinator_routes(service: Arc<dyn CoordinatorService>) -> Routes {
    client_routes(Arc::new(AllowAll(service)), PROTOCOL_VERSION)
}

/// The routes of a coordinator for clients, workers and other coordinators.
pub fn member_routes(authenticators: Authenticators) -> Routes {
    member_routes_with_version(authenticators, PROTOCOL_VERSION)
}

/// Like [`member_routes`], with this version of the protocol.
pub fn member_routes_with_version(authenticators: Authenticators, version: u32) -> Routes {
    let adapter = Arc::new(PeerAdapter);
    let peers = checked(authenticators.peer, version, |max_bytes| {
        PeerServer::from_arc(Arc::clone(&adapter))
            .max_decoding_message_size(max_bytes)
            .max_encoding_message_size(MAX_CONTROL_BYTES)
    });
    client_routes(authenticators.coordinator, version).add_service(peers)
}

fn client_routes(authenticator: Arc<dyn Authenticator<dyn CoordinatorService>>, version: u32) -> Routes {
    let adapter = Arc::new(CoordinatorAdapter);
    let members = checked(Arc::clone(&authenticator), version, |max_bytes| {
        MembersServer::from_arc(Arc::clone(&adapter)).max_decoding_message_size(max_bytes)
    });
    let coordinator = checked(authenticator, version, |max_bytes| {
        CoordinatorServer::from_arc(Arc::clone(&adapter))
            .max_decoding_message_size(max_bytes)
            .max_encoding_message_size(MAX_CONTROL_BYTES)
    });
    Routes::new(coordinator).add_service(members)
}

/// Checks the protocol version and the token of each request to a coordinator's service.
fn checked<S: ?Sized, I>(
    authenticator: Arc<dyn Authenticator<S>>,
    version: u32,
    service: impl Fn(usize) -> I,
) -> CallerService<AuthService<S, I>> {
    let version_check = VersionCheck { role: "coordinator", version };
    CallerService(AuthService::new(authenticator, Some(version_check), service))
}

/// Checks the token of each request to a service with a different protocol, such as Arrow Flight. Its methods call
/// [`super::authenticated_service`]. `service` returns the service for messages of at most the given number of bytes.
pub fn with_authenticator<S: ?Sized, I>(
    authenticator: Arc<dyn Authenticator<S>>,
    service: impl Fn(usize) -> I,
) -> CallerService<AuthService<S, I>> {
    CallerService(AuthService::new(authenticator, None, service))
}

/// The routes of a worker. [`Routes::into_axum_router`] adds further HTTP routes.
pub fn worker_routes(service: Arc<dyn WorkerService>) -> Routes {
    let server = FetchServer::new(service, None);
    Routes::new(CallerService(InterceptedService::new(server, WORKER_VERSION_CHECK)))
}

/// The routes of a worker with a local listener: clients on the same host learn its address. TCP and the local listener
/// serve the same routes.
pub fn worker_routes_with_local(service: Arc<dyn WorkerService>, listener: &LocalListener) -> Routes {
    let shm_server = listener.memory.as_ref().map(|(_, server)| Arc::clone(server));
    let locate = LocalTransportServer::new(LocalListenerAdapter(listener.endpoint.clone()))
        .max_decoding_message_size(rpc::LOCATE.max_request.bytes());
    let fetch = InterceptedService::new(FetchServer::new(service, shm_server), WORKER_VERSION_CHECK);
    let locate = InterceptedService::new(locate, WORKER_VERSION_CHECK);
    Routes::new(CallerService(fetch)).add_service(CallerService(locate))
}
