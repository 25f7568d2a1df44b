//! The HTTP servers of every role: `--http` serves `/metrics` for Prometheus and the probes for orchestrators, `--health`
//! only the probes.

mod connections;
mod exposition;
mod metrics_access;
mod probes;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use feedline_access::{ClusterSecret, Protocol, Tls, now_s};
use feedline_coordinator::{JobSeries, RunningCoordinator};
use futures::FutureExt;
use futures::future::BoxFuture;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::metrics_access::MetricsAccess;
use self::probes::RoleProbes;
pub(crate) use self::probes::{Liveness, Readiness};
use crate::access::ServerSecurity;
use crate::disk_metrics::{self, RoleDirectory};
use crate::failure::Failure;
use crate::listen;
use crate::process_metrics;

/// Bucket bounds of all histograms in seconds.
const SECONDS_BUCKETS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Interval between upkeep runs of the recorder. Without upkeep, histograms would grow in a process whose metrics are
/// never read.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The addresses of a role's HTTP servers, from the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpAddresses<'a> {
    /// The address of `--http`.
    pub(crate) http: Option<&'a str>,
    /// The address of `--health`.
    pub(crate) health: Option<&'a str>,
}

/// The running HTTP servers of a role.
#[derive(Debug)]
pub(crate) struct HttpServers {
    servers: Vec<HttpServer>,
    probes: RoleProbes,
    jobs: JobSeriesSource,
    /// Measures the disks of the role.
    disks: Option<AbortOnDropHandle<()>>,
}

/// A running server.
#[derive(Debug)]
struct HttpServer {
    /// The flag of the server without dashes, such as `http`.
    name: &'static str,
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The series of the coordinator of this process; empty before it starts, and in a process without a coordinator.
type JobSeriesSource = Arc<OnceLock<watch::Receiver<Arc<[JobSeries]>>>>;

#[derive(Clone)]
struct MetricsState {
    metrics: PrometheusHandle,
    jobs: JobSeriesSource,
    /// Checks the tokens of requests for metrics; `None` if metrics require a certificate or no authentication.
    access: Option<Arc<MetricsAccess>>,
    /// The certificate whose expiry is a metric.
    tls: Option<Arc<Tls>>,
}

/// Starts a server for each address that the user gave. The servers start before the roles, so that no measurement is lost,
/// and report "not ready" until [`HttpServers::set_ready`] is called. To read metrics, clients need a certificate if
/// `security` requires certificates, otherwise a token signed with `secret`.
pub(crate) async fn start(
    addresses: HttpAddresses<'_>,
    security: &ServerSecurity,
    secret: Option<&Arc<ClusterSecret>>,
) -> Result<HttpServers, Failure> {
    let (probes, jobs) = (RoleProbes::default(), JobSeriesSource::default());
    let mut servers = Vec::new();
    if let Some(address) = addresses.http {
        servers.push(start_http(address, security, secret, (&probes, &jobs)).await?);
    }
    if let Some(address) = addresses.health {
        servers.push(start_health(address, &probes).await?);
    }
    Ok(HttpServers { servers, probes, jobs, disks: None })
}

/// Starts the server of `--http`.
async fn start_http(
    address: &str,
    security: &ServerSecurity,
    secret: Option<&Arc<ClusterSecret>>,
    (probes, jobs): (&RoleProbes, &JobSeriesSource),
) -> Result<HttpServer, Failure> {
    let bound = listen::bind(address, "--http").await?;
    security.check_listen_address(
        bound.address,
        secret.is_some(),
        "pass --tls-cert, --tls-key and --tls-ca",
    )?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| Failure::failed(format!("cannot start the metrics recorder: {error}")))?;
    for table in exposition::tables() {
        feedline_common::metric_table::describe_metrics(table);
    }
    process_metrics::record_start();
    let stop = CancellationToken::new();
    let secret = secret.filter(|_| !security.requires_certificates());
    let access = secret.map(|secret| Arc::new(MetricsAccess::new(Arc::clone(secret))));
    let state =
        MetricsState { metrics: metrics.clone(), jobs: Arc::clone(jobs), access, tls: security.tls() };
    let routes = metrics_routes(state).merge(probes.routes());
    let server: BoxFuture<'static, ()> = match security.tls() {
        Some(tls) => {
            let incoming = feedline_access::incoming_connections(bound.listener, tls, Protocol::Http1);
            connections::serve(incoming, routes, stop.clone()).boxed()
        }
        None => {
            let incoming = feedline_access::plain_connections(bound.listener);
            connections::serve(incoming, routes, stop.clone()).boxed()
        }
    };
    let task = tokio::spawn(async move {
        let upkeep = async {
            let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
            loop {
                interval.tick().await;
                metrics.run_upkeep();
            }
        };
        tokio::select! {
            () = server => {}
            () = upkeep => {}
        }
    });
    Ok(HttpServer { name: "http", address: bound.address, stop, task })
}

/// Starts the server of `--health`. It accepts every client on any address and without TLS, because a kubelet has no client
/// certificate, and the probes disclose nothing else.
async fn start_health(address: &str, probes: &RoleProbes) -> Result<HttpServer, Failure> {
    let bound = listen::bind(address, "--health").await?;
    let stop = CancellationToken::new();
    let incoming = feedline_access::plain_connections(bound.listener);
    let task = tokio::spawn(connections::serve(incoming, probes.routes(), stop.clone()));
    Ok(HttpServer { name: "health", address: bound.address, stop, task })
}

impl HttpServers {
    /// Marks the role as started, and sets its readiness check.
    pub(crate) fn set_ready(&self, readiness: Readiness) {
        self.probes.set_started(readiness);
    }

    /// Sets the liveness check of the role. Until then, the role is alive.
    pub(crate) fn set_liveness(&self, liveness: Liveness) {
        self.probes.set_liveness(liveness);
    }

    /// Exports the running jobs of the coordinator of this process, if it has one.
    pub(crate) fn export_jobs(&self, coordinator: Option<&RunningCoordinator>) {
        if let Some(coordinator) = coordinator {
            // This fails only if the jobs are already set, but a role calls this method once.
            let _ = self.jobs.set(coordinator.job_series());
        }
    }

    /// Exports the free and total bytes of the disks of these directories.
    pub(crate) fn watch_disks(&mut self, directories: Vec<RoleDirectory>) {
        self.disks = Some(AbortOnDropHandle::new(tokio::spawn(disk_metrics::watch(directories))));
    }

    /// Returns the name and the address of each server.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        self.servers.iter().map(|server| (server.name, server.address))
    }

    /// Stops the servers.
    pub(crate) async fn shutdown(self) {
        drop(self.disks);
        for server in &self.servers {
            server.stop.cancel();
        }
        for server in self.servers {
            if let Err(error) = server.task.await {
                tracing::warn!(%error, "the HTTP server of --{} failed during shutdown", server.name);
            }
        }
    }
}

fn metrics_routes(state: MetricsState) -> Router {
    Router::new().route("/metrics", get(serve_metrics)).with_state(state)
}

async fn serve_metrics(State(state): State<MetricsState>, headers: HeaderMap) -> Response {
    let allowed = state.access.as_ref().map_or(Ok(()), |access| access.check(&headers, now_s()));
    if let Err(reason) = allowed {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, format!("{reason}\n")).into_response();
    }
    process_metrics::update(state.tls.as_deref());
    let jobs = state.jobs.get().map(|jobs| Arc::clone(&jobs.borrow())).unwrap_or_default();
    let page = exposition::render(&state.metrics, &jobs);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

#[cfg(test)]
mod tests;
