//! The HTTP side of every role: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever runs the process.

mod connections;
mod readers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use feedline_access::{Protocol, Secret, now_s};
use futures::FutureExt;
use futures::future::BoxFuture;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::readers::Readers;
use crate::access::ServerSecurity;
use crate::failure::Failure;
use crate::listen;
use crate::process_metrics;

/// Bounds of the buckets of every histogram of seconds.
const SECONDS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Histograms are folded this often, so that a process that nobody asks does not gather samples.
const UPKEEP: Duration = Duration::from_secs(5);

/// Says whether the process can do its work now, or in one clause why not.
pub(crate) type Readiness = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A server that runs.
#[derive(Debug)]
pub(crate) struct HttpServer {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    ready: Arc<Ready>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Ready(OnceLock<Readiness>);

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "started" } else { "starting" })
    }
}

#[derive(Clone)]
struct Shared {
    metrics: PrometheusHandle,
    ready: Arc<Ready>,
    /// Who may read metrics; `None` where connections say enough, or nobody asks.
    readers: Option<Arc<Readers>>,
}

/// Starts serving where the user gave an address. Comes before the roles, so that no measurement is lost; until
/// [`HttpServer::set_ready`] the process is not ready. Metrics are shown to whoever has a certificate where the guard asks
/// for one, and else to whoever has a token of the cluster with this secret.
pub(crate) async fn start(
    address: Option<&str>,
    guard: &ServerSecurity,
    secret: Option<&Secret>,
) -> Result<Option<HttpServer>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let bound = listen::bind(address, "--http").await?;
    guard.check(bound.address, secret.is_some(), "give --tls-cert, --tls-key and --tls-ca")?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| Failure::failed(format!("cannot start metrics: {error}")))?;
    feedline_coordinator::describe_metrics();
    feedline_client::describe_metrics();
    process_metrics::describe();
    let ready = Arc::new(Ready::default());
    let stop = CancellationToken::new();
    let readers =
        secret.filter(|_| !guard.asks_for_certificates()).map(|secret| Arc::new(Readers::of(secret)));
    let routes = routes(Shared { metrics: metrics.clone(), ready: Arc::clone(&ready), readers });
    let server: BoxFuture<'static, ()> = match guard.tls() {
        Some(tls) => {
            let incoming = feedline_access::incoming(bound.listener, tls, Protocol::Http1);
            connections::serve(incoming, routes, stop.clone()).boxed()
        }
        None => connections::serve(connections::plain(bound.listener), routes, stop.clone()).boxed(),
    };
    let task = tokio::spawn(async move {
        let upkeep = async {
            let mut interval = tokio::time::interval(UPKEEP);
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
    Ok(Some(HttpServer { address: bound.address, ready, stop, task }))
}

impl HttpServer {
    /// Says how to tell whether the process is ready, which it may be from now on.
    pub(crate) fn set_ready(&self, readiness: Readiness) {
        // A second call would change nothing, and there is none.
        let _ = self.ready.0.set(readiness);
    }

    /// Ends serving.
    pub(crate) async fn shutdown(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the metrics server ended badly");
        }
    }
}

fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(shared)
}

async fn metrics_text(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let allowed = shared.readers.as_ref().map_or(Ok(()), |readers| readers.check(&headers, now_s()));
    if let Err(reason) = allowed {
        let asks = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, asks, format!("{reason}\n")).into_response();
    }
    process_metrics::update();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], shared.metrics.render()).into_response()
}

async fn readiness(State(shared): State<Shared>) -> (StatusCode, String) {
    let ready = shared.ready.0.get().map_or_else(|| Err("starting".to_owned()), |ready| ready());
    match ready {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

#[cfg(test)]
mod tests;
