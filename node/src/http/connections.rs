//! Connections of the HTTP side: there is an end to how many there are, and to how long each lasts.

use std::time::Duration;

use axum::Router;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait to be accepted.
pub(super) const MOST_CONNECTIONS: usize = 256;
/// Time that a client has to say what it wants.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a connection is ended with the answer under way, and a little later without: whoever asks for metrics
/// connects again.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Time that open requests have at the end.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after the system could accept no connection, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections without TLS.
pub(super) fn plain(listener: TcpListener) -> BoxStream<'static, TcpStream> {
    let accepted = stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, listener)),
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    accepted.boxed()
}

/// Serves these connections until `stop`, and what is open then for [`GRACE`].
pub(super) async fn serve<S>(mut incoming: BoxStream<'static, S>, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = incoming.next(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Some(stream) => drop(connections.spawn(answer(stream, routes.clone(), stop.clone()))),
                None => break,
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn answer<S>(stream: S, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    tokio::pin!(connection);
    let over = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(CONNECTION_TIME) => {}
        }
    };
    tokio::select! {
        // What a client does to its connection is its own affair.
        _ = connection.as_mut() => return,
        () = over => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(GRACE, connection).await;
}
