//! The roles that listen: coordinator, worker, and both in one process. A role prints one line when it is ready, and
//! runs until it receives a signal.

mod coordinator;
mod keda_scaler;
mod scaling;
mod up;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::{ClusterSecret, Credentials, Tls};
use feedline_coordinator::{RunningCoordinator, TokenAuthenticator};
use feedline_proto::authenticator::Authenticators;
use feedline_proto::{CoordinatorService, grpc};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, timeout_at};
use tonic::service::Routes;

pub(crate) use self::coordinator::run as run_coordinator;
pub(crate) use self::up::run as run_up;
pub(crate) use self::worker::run as run_worker;
use crate::failure::{Failure, reason};
use crate::flight;
use crate::http::HttpServers;
use crate::local_listener::{OpenedListener, SocketFolder};
use crate::local_workers::LocalWorker;
use crate::output;

/// Minimum time for the last responses to reach the clients, and extra time that a role has to end after its grace
/// period.
const FINAL_GRACE: Duration = Duration::from_secs(1);

/// The services of a coordinator: Feedline's protocol and Arrow Flight.
struct CoordinatorRoutes {
    routes: Routes,
    /// The service that workers in this process call.
    for_workers: Arc<dyn CoordinatorService>,
}

/// Builds the routes of a coordinator. With a secret, clients need a token that is signed with it. Arrow Flight
/// presents `credentials` to workers.
fn coordinator_routes(
    coordinator: &RunningCoordinator,
    secret: Option<&Arc<ClusterSecret>>,
    credentials: Credentials,
    protocol_version: u32,
) -> CoordinatorRoutes {
    let service = coordinator.service();
    let peer = coordinator.peer_service();
    let (authenticators, for_workers) = match secret {
        Some(secret) => {
            let tokens = TokenAuthenticator::new(Arc::clone(secret), service, peer);
            (tokens.authenticators(), tokens.for_workers())
        }
        None => (Authenticators::allow_all(Arc::clone(&service), peer), service),
    };
    let flights = flight::service(Arc::clone(&authenticators.coordinator), credentials);
    let routes = grpc::member_routes_with_version(authenticators, protocol_version).add_service(flights);
    CoordinatorRoutes { routes, for_workers }
}

/// A running gRPC server.
struct GrpcServer {
    /// The deadline for open requests; `None` before the shutdown begins.
    deadline: watch::Sender<Option<Instant>>,
    task: JoinHandle<std::io::Result<()>>,
    /// The directory of local sockets, which is removed when the server is dropped.
    _folder: Option<SocketFolder>,
}

impl GrpcServer {
    fn start(listener: TcpListener, tls: Option<Arc<Tls>>, routes: Routes) -> Self {
        let (deadline, deadline_receiver) = watch::channel(None);
        let task = tokio::spawn(serve(listener, tls, routes, deadline_receiver));
        Self { deadline, task, _folder: None }
    }

    /// Serves a worker over TCP and over its local listener.
    fn start_worker(
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        worker: &LocalWorker,
        opened: Option<OpenedListener>,
    ) -> Self {
        let service = worker.running.service();
        let Some(OpenedListener { listener: local, folder, shared_bytes }) = opened else {
            return Self::start(listener, tls, grpc::worker_routes(service));
        };
        worker.running.count_shared_memory(shared_bytes);
        let routes = grpc::worker_routes_with_local(service, &local);
        let (deadline, deadline_receiver) = watch::channel(None);
        let remote = serve(listener, tls, routes.clone(), deadline_receiver.clone());
        let local = grpc::serve_local(local, routes, wait_for_deadline(deadline_receiver));
        let task = tokio::spawn(async move { tokio::try_join!(remote, local).map(|_| ()) });
        Self { deadline, task, _folder: Some(folder) }
    }

    /// Waits until the server ends. Unless [`Self::shutdown`] is called, the server ends only after a failure.
    async fn wait(&mut self) -> Result<(), Failure> {
        match (&mut self.task).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(Failure::failed(format!("the server failed: {}; restart this process", reason(&error))))
            }
            Err(error) => Err(Failure::failed(format!("the server stopped: {error}; restart this process"))),
        }
    }

    /// Stops accepting requests, and waits for open requests until the deadline, but at least [`FINAL_GRACE`].
    async fn shutdown(mut self, deadline: Instant) -> Result<(), Failure> {
        let deadline = deadline.max(Instant::now() + FINAL_GRACE);
        self.deadline.send_replace(Some(deadline));
        self.wait().await?;
        if Instant::now() >= deadline {
            tracing::warn!(
                "clients did not read their responses within the grace period; their connections are closed"
            );
        }
        Ok(())
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    routes: Routes,
    deadline: watch::Receiver<Option<Instant>>,
) -> std::io::Result<()> {
    match tls {
        Some(tls) => grpc::serve_tls(listener, tls, routes, wait_for_deadline(deadline)).await,
        None => grpc::serve(listener, routes, wait_for_deadline(deadline)).await,
    }
}

/// Waits until the shutdown begins, and returns the deadline for open requests.
async fn wait_for_deadline(mut receiver: watch::Receiver<Option<Instant>>) -> Instant {
    let deadline = receiver.wait_for(Option::is_some).await.ok().and_then(|deadline| *deadline);
    // If the sender was dropped, the server ends immediately.
    deadline.unwrap_or_else(Instant::now)
}

/// Stops a coordinator within [`FINAL_GRACE`] after the deadline. Acknowledged decisions are already on disk.
async fn stop_coordinator(coordinator: RunningCoordinator, deadline: Instant) -> Result<(), Failure> {
    match timeout_at(deadline + FINAL_GRACE, coordinator.shutdown()).await {
        Ok(ended) => ended.map_err(Failure::failed),
        Err(_) => {
            tracing::warn!(
                "the coordinator did not stop within the grace period; a restart recovers from its log"
            );
            Ok(())
        }
    }
}

/// Stops a worker and its server within [`FINAL_GRACE`] after the deadline.
async fn stop_worker(server: GrpcServer, worker: LocalWorker, deadline: Instant) -> Result<(), Failure> {
    let last = deadline.max(Instant::now()) + FINAL_GRACE;
    let (stopped, ended) = tokio::join!(server.shutdown(deadline), timeout_at(last, worker.stop()));
    if ended.is_err() {
        tracing::warn!("the worker did not stop within the grace period; its remaining work is discarded");
    }
    stopped
}

/// Prints that the role is ready, with the addresses of its servers, for programs that wait for these lines.
fn announce(role: &str, address: SocketAddr, http: &HttpServers) -> Result<(), Failure> {
    let mut lines = format!("feedline {role} listening on {address}\n");
    for (name, address) in http.addresses() {
        lines.push_str(&format!("feedline {role} {name} on {address}\n"));
    }
    Ok(output::print(&lines)?)
}

#[cfg(test)]
mod tests;
