//! The HTTP server of every role: `/metrics` for Prometheus, `/healthz` and `/readyz` for orchestrators.

mod connections;
mod metrics_access;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use feedline_access::{ClusterSecret, Protocol, Tls, now_s};
use futures::FutureExt;
use futures::future::BoxFuture;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::metrics_access::MetricsAccess;
use crate::access::ServerSecurity;
use crate::failure::Failure;
use crate::listen;
use crate::process_metrics;

/// Bucket bounds of all histograms in seconds.
const SECONDS_BUCKETS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Interval between upkeep runs of the recorder. Without upkeep, histograms would grow in a process whose metrics are
/// never read.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Returns `Ok` if the process is ready, otherwise the reason.
pub(crate) type Readiness = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A running server.
#[derive(Debug)]
pub(crate) struct HttpServer {
    /// The address that the server listens on.
    pub(crate) address: SocketAddr,
    readiness: Arc<ReadinessCell>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The readiness check; empty while the role starts.
#[derive(Default)]
struct ReadinessCell(OnceLock<Readiness>);

impl std::fmt::Debug for ReadinessCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "started" } else { "starting" })
    }
}

#[derive(Clone)]
struct HttpState {
    metrics: PrometheusHandle,
    readiness: Arc<ReadinessCell>,
    /// Checks the tokens of requests for metrics; `None` if metrics require a certificate or no authentication.
    metrics_access: Option<Arc<MetricsAccess>>,
    /// The certificate whose expiry is a metric.
    tls: Option<Arc<Tls>>,
}

/// Starts the server if the user gave an address. The server starts before the roles, so that no measurement is lost,
/// and reports "not ready" until [`HttpServer::set_ready`] is called. To read metrics, clients need a certificate if
/// `security` requires certificates, otherwise a token signed with `secret`.
pub(crate) async fn start(
    address: Option<&str>,
    security: &ServerSecurity,
    secret: Option<&Arc<ClusterSecret>>,
) -> Result<Option<HttpServer>, Failure> {
    let Some(address) = address else { return Ok(None) };
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
    for table in [
        feedline_coordinator::METRICS,
        feedline_worker::metrics::METRICS,
        feedline_client::METRICS,
        process_metrics::METRICS,
    ] {
        feedline_common::metric_table::describe_metrics(table);
    }
    let readiness = Arc::new(ReadinessCell::default());
    let stop = CancellationToken::new();
    let secret = secret.filter(|_| !security.requires_certificates());
    let metrics_access = secret.map(|secret| Arc::new(MetricsAccess::new(Arc::clone(secret))));
    let routes = routes(HttpState {
        metrics: metrics.clone(),
        readiness: Arc::clone(&readiness),
        metrics_access,
        tls: security.tls(),
    });
    let server: BoxFuture<'static, ()> = match security.tls() {
        Some(tls) => {
            let incoming = feedline_access::incoming_connections(bound.listener, tls, Protocol::Http1);
            connections::serve(incoming, routes, stop.clone()).boxed()
        }
        None => connections::serve(connections::accept_plain(bound.listener), routes, stop.clone()).boxed(),
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
    Ok(Some(HttpServer { address: bound.address, readiness, stop, task }))
}

impl HttpServer {
    /// Sets the readiness check.
    pub(crate) fn set_ready(&self, readiness: Readiness) {
        // This fails only if the check is already set, but a role calls this method once.
        let _ = self.readiness.0.set(readiness);
    }

    /// Stops the server.
    pub(crate) async fn shutdown(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the HTTP server failed during shutdown");
        }
    }
}

fn routes(state: HttpState) -> Router {
    Router::new()
        .route("/metrics", get(serve_metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(serve_readiness))
        .with_state(state)
}

async fn serve_metrics(State(state): State<HttpState>, headers: HeaderMap) -> Response {
    let allowed = state.metrics_access.as_ref().map_or(Ok(()), |access| access.check(&headers, now_s()));
    if let Err(reason) = allowed {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, format!("{reason}\n")).into_response();
    }
    process_metrics::update(state.tls.as_deref());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics.render()).into_response()
}

async fn serve_readiness(State(state): State<HttpState>) -> (StatusCode, String) {
    let readiness = state.readiness.0.get().map_or_else(|| Err("starting".to_owned()), |check| check());
    match readiness {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

#[cfg(test)]
mod tests;
