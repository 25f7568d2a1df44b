//! The roles that listen: coordinator, worker, and both at once. Each prints one line when it is ready and runs until a
//! signal.

mod coordinator;
mod up;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::{Credentials, Secret, Tls};
use feedline_coordinator::{Gate, RunningCoordinator};
use feedline_proto::door::Doors;
use feedline_proto::{CoordinatorService, grpc};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub(crate) use self::coordinator::run as run_coordinator;
pub(crate) use self::up::run as run_up;
pub(crate) use self::worker::run as run_worker;
use crate::entrance::{Opened, SocketFolder};
use crate::failure::{Failure, reason};
use crate::flight;
use crate::http::HttpServer;
use crate::local_workers::LocalWorker;
use crate::output;

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
    let (peer, members) = (coordinator.peer_service(), coordinator.members_service());
    let (doors, for_workers) = match secret {
        Some(secret) => {
            let gate = Gate::new(secret, service, peer, members);
            (gate.doors(), gate.for_workers())
        }
        None => (Doors::open(Arc::clone(&service), peer, members), service),
    };
    let flights = flight::service(Arc::clone(&doors.coordinator), credentials);
    Served { routes: grpc::member_routes(doors).add_service(flights), for_workers }
}

/// A gRPC server that runs.
struct GrpcServer {
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
    /// Where local sockets lie; removed with the server.
    _folder: Option<SocketFolder>,
}

impl GrpcServer {
    fn start(listener: TcpListener, tls: Option<Arc<Tls>>, routes: Routes) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, tls, routes, stop.clone()));
        Self { stop, task, _folder: None }
    }

    /// Serves a worker by TCP, and by its entrance to consumers on this host.
    fn start_worker(
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        worker: &LocalWorker,
        opened: Option<Opened>,
    ) -> Self {
        let service = worker.running.service();
        let Some(Opened { entrance, folder, lent_bytes }) = opened else {
            return Self::start(listener, tls, grpc::worker_routes(service));
        };
        worker.running.count_lent(lent_bytes);
        let routes = grpc::worker_routes_with(service, &entrance);
        let stop = CancellationToken::new();
        let remote = serve(listener, tls, routes.clone(), stop.clone());
        let local = grpc::serve_entrance(entrance, routes, stop.clone().cancelled_owned());
        let task = tokio::spawn(async move { tokio::try_join!(remote, local).map(|_| ()) });
        Self { stop, task, _folder: Some(folder) }
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

    /// Takes no new requests, gives the open ones a few seconds, and ends.
    async fn shutdown(mut self) -> Result<(), Failure> {
        self.stop.cancel();
        self.wait().await
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    routes: Routes,
    stop: CancellationToken,
) -> std::io::Result<()> {
    match tls {
        Some(tls) => grpc::serve_tls(listener, tls, routes, stop.cancelled_owned()).await,
        None => grpc::serve(listener, routes, stop.cancelled_owned()).await,
    }
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
