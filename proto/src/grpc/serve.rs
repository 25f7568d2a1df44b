//! The gRPC server: transport settings, graceful shutdown, and connections that end with the server.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use feedline_access::{Protocol, Tls, accept_next};
use futures::{Stream, StreamExt, stream};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::caller::Caller;
use crate::local::{LocalListener, PeerProcess};

use super::caller_service::ConnectionInfo;
use super::settings::{
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_CONNECTIONS, MAX_FRAME_BYTES, MAX_STREAMS, WINDOW_BYTES,
};

/// Send buffer of a Unix socket. TCP tunes its buffers itself.
const UNIX_BUFFER_BYTES: usize = 1 << 20;

/// Serves until `shutdown` returns a deadline. After that, the server accepts no new requests, waits for open requests until
/// the deadline, and closes the remaining connections. Dropping the future closes all connections immediately.
///
/// # Errors
/// Returns an error if the transport fails.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let incoming = feedline_access::plain_connections(listener).map(|stream| {
        stream.set_nodelay(true)?;
        let is_local = stream.peer_addr()?.ip() == stream.local_addr()?.ip();
        io::Result::Ok((stream, ConnectionInfo::network(is_local)))
    });
    serve_all(incoming, routes, shutdown).await
}

/// Like [`serve`], over TLS. Connections whose handshake fails are closed without a response.
///
/// # Errors
/// Returns the errors of [`serve`].
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<Tls>,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let incoming = feedline_access::incoming_connections(listener, tls, Protocol::Http2).map(|stream| {
        let tcp = stream.get_ref().0;
        let is_local = tcp.peer_addr()?.ip() == tcp.local_addr()?.ip();
        io::Result::Ok((stream, ConnectionInfo::network(is_local)))
    });
    serve_all(incoming, routes, shutdown).await
}

/// Like [`serve`], for clients on this host: over a Unix socket, and with shared memory if the listener provides it.
///
/// # Errors
/// Returns an error if the transport fails.
pub async fn serve_local(
    listener: LocalListener,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let accepted = stream::unfold(listener.socket, |socket| async move {
        let (stream, _) = accept_next(|cx| socket.poll_accept(cx)).await;
        Some((stream, socket))
    });
    let incoming = accepted.map(|stream| {
        // With a smaller buffer, the two processes would wait for each other. The system may set a smaller size.
        set_socket_send_buffer_size(&stream, UNIX_BUFFER_BYTES)?;
        let process = PeerProcess::of(&stream);
        io::Result::Ok((stream, ConnectionInfo { caller: Caller::unique(), link: None, process }))
    });
    let served = serve_all(incoming, routes, shutdown);
    let Some((memory_listener, shm_server)) = listener.memory else { return served.await };
    tokio::select! {
        result = served => result,
        never = shm_server.serve(memory_listener) => match never {},
    }
}

async fn serve_all<S>(
    incoming: impl Stream<Item = io::Result<(S, ConnectionInfo)>>,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let dropped = CancellationToken::new();
    let _guard = dropped.clone().drop_guard();
    let stopping = CancellationToken::new();
    let incoming = limit_connections(incoming, max_connections()).map(move |(stream, permit)| {
        let (stream, info) = stream?;
        io::Result::Ok(Connection {
            stream,
            info,
            server_dropped: Box::pin(dropped.clone().cancelled_owned()),
            _permit: permit,
        })
    });
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stopping.clone().cancelled_owned());
    tokio::pin!(server);
    let deadline = tokio::select! {
        result = &mut server => return result.map_err(io::Error::other),
        deadline = shutdown => deadline,
    };
    stopping.cancel();
    match tokio::time::timeout_at(deadline, server).await {
        Ok(result) => result.map_err(io::Error::other),
        Err(_) => Ok(()),
    }
}

/// Returns the maximum number of open connections of one listener: three quarters of the file descriptors that the process may open,
/// so that some remain for files and outgoing connections, and at most [`MAX_CONNECTIONS`].
fn max_connections() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    descriptors.map_or(MAX_CONNECTIONS, |limit| (limit / 4 * 3).clamp(1, MAX_CONNECTIONS))
}

/// Adds a permit to each connection. While `max` permits are in use, further connections wait in the backlog of the listener.
fn limit_connections<C>(
    incoming: impl Stream<Item = C>,
    max: usize,
) -> impl Stream<Item = (C, OwnedSemaphorePermit)> {
    let permits = Arc::new(Semaphore::new(max));
    stream::unfold((Box::pin(incoming), permits), move |(mut incoming, permits)| async move {
        if permits.available_permits() == 0 {
            tracing::warn!(
                "all {max} connections of a listener are in use: new ones wait; raise the limit of open files"
            );
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
        let connection = incoming.next().await?;
        Some(((connection, permit), (incoming, permits)))
    })
}

/// A connection that fails as soon as the server is dropped. Otherwise, tonic's task would continue. The connection also
/// measures the throughput to another host.
struct Connection<S> {
    stream: S,
    info: ConnectionInfo,
    server_dropped: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Counts this connection against the limit until it is dropped.
    _permit: OwnedSemaphorePermit,
}

impl<S> Connection<S> {
    fn measure(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match (&self.info.link, &written) {
            (Some(link), Poll::Ready(Ok(bytes))) => link.on_written(*bytes),
            (Some(link), Poll::Pending) => link.on_blocked(),
            _ => {}
        }
        written
    }
}

/// Passes the connection to its requests.
impl<S> Connected for Connection<S> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.server_dropped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.measure(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.measure(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_until_one_is_closed() {
        let incoming = limit_connections(stream::iter(0..4), 2);
        tokio::pin!(incoming);
        let (_, first) = incoming.next().await.unwrap();
        let (_, _second) = incoming.next().await.unwrap();
        assert!(futures::poll!(incoming.next()).is_pending());
        drop(first);
        let (third, _permit) = incoming.next().await.unwrap();
        assert_eq!(third, 2, "the connection that waited");
        assert!(futures::poll!(incoming.next()).is_pending());
    }

    #[test]
    fn some_file_descriptors_remain_for_files() {
        assert!((1..=MAX_CONNECTIONS).contains(&max_connections()));
    }
}
