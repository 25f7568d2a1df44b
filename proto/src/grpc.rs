//! The services over gRPC: clients that implement a service, and servers that call a service.

mod auth_service;
mod body_deadline;
mod caller_service;
mod channel;
mod coordinator_client;
mod coordinator_server;
mod errors;
mod external_scaler;
mod failover;
mod fetch_client;
mod fetch_server;
mod framing;
pub(crate) mod fuzzing;
mod introduction;
mod link;
mod local_listener_server;
mod manifest_stream;
mod peer_client;
mod peer_server;
mod pending_fetches;
mod route;
mod routes;
mod serve;
mod settings;
mod version;
mod worker_client;

pub use self::auth_service::{AuthService, authenticated_service};
pub use self::caller_service::CallerService;
pub use self::coordinator_client::{connect_coordinator, connect_coordinator_with_version};
pub use self::errors::to_status;
pub use self::external_scaler::{WorkerDemand, external_scaler_routes};
pub use self::failover::connect_coordinators;
pub use self::peer_client::{connect_peer, connect_peer_with_version};
pub use self::routes::{
    coordinator_routes, member_routes, member_routes_with_version, with_authenticator, worker_routes,
    worker_routes_with_local,
};
pub use self::serve::{serve, serve_local, serve_tls};
pub use self::version::bearer_token;
pub use self::worker_client::{OnReceived, connect_worker, connect_worker_over, connect_worker_with_version};
pub use crate::rpc::REPORT_RETRY_AFTER;

#[cfg(test)]
mod tests;
