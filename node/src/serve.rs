//! The roles that listen: coordinator, worker, and both at once. Each prints one line when it is ready and runs until a
//! signal.

mod coordinator;
mod up;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::{Credentials, Secret, Tls};
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
use crate::http::HttpServer;
use crate::local_listener::{OpenedListener, SocketFolder};
use crate::local_workers::LocalWorker;
use crate::output;

/// The least time that answers have to reach whoever asked, at the end, and that a role has to end in order after its grace
/// time.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What a coordinator serves: its own protocol, and its jobs by Arrow Flight.
struct Served {
    routes: Routes,
    /// What workers in this process report to.
    for_workers: Arc<dyn CoordinatorService>,
}

/// Serves a coordinator to whoever has a token of the cluster with this secret; without one to everybody. Jobs are read
/// from workers with `credentials`.
fn served(coordinator: &RunningCoordinator, secret: Option<&Secret>, credentials: Credentials) -> Served {
    let service = coordinator.service();
    let peer = coordinator.peer_service();
    let (doors, for_workers) = match secret {
        Some(secret) => {
            let gate = TokenAuthenticator::new(secret, service, peer);
            (gate.doors(), gate.for_workers())
        }
        None => (Authenticators::open(Arc::clone(&service), peer), service),
    };
    let flights = flight::service(Arc::clone(&doors.coordinator), credentials);
    Served { routes: grpc::member_routes(doors).add_service(flights), for_workers }
}

/// A gRPC server that runs.
struct GrpcServer {
    /// When open requests are cut, once it shall end.
    end: watch::Sender<Option<Instant>>,
    task: JoinHandle<std::io::Result<()>>,
    /// Where local sockets lie; removed with the server.
    _folder: Option<SocketFolder>,
}

impl GrpcServer {
    fn start(listener: TcpListener, tls: Option<Arc<Tls>>, routes: Routes) -> Self {
        let (end, ends) = watch::channel(None);
        let task = tokio::spawn(serve(listener, tls, routes, ends));
        Self { end, task, _folder: None }
    }

    /// Serves a worker by TCP, and by its entrance to consumers on this host.
    fn start_worker(
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        worker: &LocalWorker,
        opened: Option<OpenedListener>,
    ) -> Self {
        let service = worker.running.service();
        let Some(OpenedListener { entrance, folder, lent_bytes }) = opened else {
            return Self::start(listener, tls, grpc::worker_routes(service));
        };
        worker.running.count_lent(lent_bytes);
        let routes = grpc::worker_routes_with(service, &entrance);
        let (end, ends) = watch::channel(None);
        let remote = serve(listener, tls, routes.clone(), ends.clone());
        let local = grpc::serve_entrance(entrance, routes, ending(ends));
        let task = tokio::spawn(async move { tokio::try_join!(remote, local).map(|_| ()) });
        Self { end, task, _folder: Some(folder) }
    }

    /// Waits until it ends, which without [`Self::shutdown`] it does only when it cannot go on.
    async fn wait(&mut self) -> Result<(), Failure> {
        match (&mut self.task).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(Failure::failed(format!("cannot go on listening: {}; start again", reason(&error))))
            }
            Err(error) => Err(Failure::failed(format!("the server stopped: {error}; start again"))),
        }
    }

    /// Takes no new requests, gives the open ones until then, and at least [`LAST_ANSWERS`], and ends.
    async fn shutdown(mut self, deadline: Instant) -> Result<(), Failure> {
        let deadline = deadline.max(Instant::now() + LAST_ANSWERS);
        self.end.send_replace(Some(deadline));
        self.wait().await?;
        if Instant::now() >= deadline {
            tracing::warn!("answers were still being read after the grace time; their connections are cut");
        }
        Ok(())
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    routes: Routes,
    ends: watch::Receiver<Option<Instant>>,
) -> std::io::Result<()> {
    match tls {
        Some(tls) => grpc::serve_tls(listener, tls, routes, ending(ends)).await,
        None => grpc::serve(listener, routes, ending(ends)).await,
    }
}

/// Waits until a server shall end: the time at which its open requests are cut.
async fn ending(mut ends: watch::Receiver<Option<Instant>>) -> Instant {
    let told = ends.wait_for(Option::is_some).await.ok().and_then(|deadline| *deadline);
    // Whoever would tell is gone.
    told.unwrap_or_else(Instant::now)
}

/// Ends a coordinator, within [`LAST_ANSWERS`] after the deadline. What it has acknowledged is on disk as it is.
async fn stop_coordinator(coordinator: RunningCoordinator, deadline: Instant) -> Result<(), Failure> {
    match timeout_at(deadline + LAST_ANSWERS, coordinator.shutdown()).await {
        Ok(ended) => ended.map_err(Failure::failed),
        Err(_) => {
            tracing::warn!("the coordinator did not end within the grace time; it goes on from its log");
            Ok(())
        }
    }
}

/// Ends a worker and its server, within [`LAST_ANSWERS`] after the deadline.
async fn stop_worker(server: GrpcServer, worker: LocalWorker, deadline: Instant) -> Result<(), Failure> {
    let last = deadline.max(Instant::now()) + LAST_ANSWERS;
    let (stopped, ended) = tokio::join!(server.shutdown(deadline), timeout_at(last, worker.stop()));
    if ended.is_err() {
        tracing::warn!("the worker did not stop within the grace time; its work is abandoned");
    }
    stopped
}

/// Tells programs that wait for it that the role is ready, and where.
fn announce(role: &str, address: SocketAddr, http: Option<&HttpServer>) -> Result<(), Failure> {
    let mut lines = format!("feedline {role} listening on {address}\n");
    if let Some(http) = http {
        lines.push_str(&format!("feedline {role} http on {}\n", http.address));
    }
    Ok(output::print(&lines)?)
}

/// Ends the HTTP side, if there is one.
async fn stop_http(http: Option<HttpServer>) {
    if let Some(http) = http {
        http.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
