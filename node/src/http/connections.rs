//! Connections of the HTTP server. Their number and lifetime are bounded.

use std::time::Duration;

use axum::Router;
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Maximum number of open connections; further connections wait in the backlog.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Timeout for receiving the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum age of a connection. The server closes an older connection after the current response, and the client
/// reconnects.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(60);
/// Time for open requests to complete when a connection or the server ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Serves connections until `stop` is cancelled. Open requests then have [`SHUTDOWN_GRACE`] to complete.
pub(super) async fn serve<S>(mut incoming: BoxStream<'static, S>, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = incoming.next(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Some(stream) => drop(connections.spawn(serve_connection(stream, routes.clone(), stop.clone()))),
                None => break,
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn serve_connection<S>(stream: S, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    tokio::pin!(connection);
    let expired = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(MAX_CONNECTION_AGE) => {}
        }
    };
    tokio::select! {
        // A connection error affects only its client.
        _ = connection.as_mut() => return,
        () = expired => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, connection).await;
}
