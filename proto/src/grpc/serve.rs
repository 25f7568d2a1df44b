//! The server: settings of the transport, an orderly end, and no connection that outlives it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use feedline_access::{Protocol, Tls};
use futures::{Stream, StreamExt};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::caller::Caller;
use crate::local::{LocalListener, PeerProcess};

use super::caller_service::ConnectionInfo;
use super::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_FRAME_BYTES, MAX_STREAMS, WINDOW_BYTES};

/// What may be on its way through a Unix socket. TCP finds a size by itself.
const UNIX_BUFFER_BYTES: usize = 1 << 20;

/// Serves until `shutdown` completes, then takes no new requests, gives the open ones until the time that it completed
/// with, and cuts what is left. Dropping the future cuts every connection at once.
///
/// # Errors
/// When the transport cannot go on.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let is_local = stream.peer_addr()?.ip() == stream.local_addr()?.ip();
        io::Result::Ok((stream, ConnectionInfo::network(is_local)))
    });
    serve_all(incoming, routes, shutdown).await
}

/// As [`serve`], over TLS. Connections that do not prove what they have to are closed without an answer.
///
/// # Errors
/// As [`serve`].
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<Tls>,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let incoming = feedline_access::incoming(listener, tls, Protocol::Http2).map(|stream| {
        let tcp = stream.get_ref().0;
        let is_local = tcp.peer_addr()?.ip() == tcp.local_addr()?.ip();
        io::Result::Ok((stream, ConnectionInfo::network(is_local)))
    });
    serve_all(incoming, routes, shutdown).await
}

/// As [`serve`], for clients on this host: by a Unix socket, and with lent memory where the entrance has some.
///
/// # Errors
/// When the transport cannot go on.
pub async fn serve_entrance(
    entrance: LocalListener,
    routes: Routes,
    shutdown: impl Future<Output = Instant>,
) -> io::Result<()> {
    let incoming = UnixListenerStream::new(entrance.socket).map(|stream| {
        let stream = stream?;
        // With less the two ends wait for each other; where the system allows less, it is that.
        set_socket_send_buffer_size(&stream, UNIX_BUFFER_BYTES)?;
        let process = PeerProcess::of(&stream);
        io::Result::Ok((stream, ConnectionInfo { caller: Caller::next(), link: None, process }))
    });
    let served = serve_all(incoming, routes, shutdown);
    let Some((listener, lender)) = entrance.memory else { return served.await };
    let lending = async move {
        lender.serve(listener).await;
        // Without it pieces come through the socket.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = served => result,
        () = lending => Ok(()),
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
    let cut = CancellationToken::new();
    let _cut_when_done = cut.clone().drop_guard();
    let stopping = CancellationToken::new();
    let incoming = incoming.map(move |stream| {
        let (stream, over) = stream?;
        io::Result::Ok(Connection { stream, over, cut: Box::pin(cut.clone().cancelled_owned()) })
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

/// A connection that fails as soon as the server is gone: tonic's task for it would go on. It measures how fast a link
/// to another host is.
struct Connection<S> {
    stream: S,
    over: ConnectionInfo,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Connection<S> {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match (&self.over.link, &written) {
            (Some(link), Poll::Ready(Ok(bytes))) => link.on_written(*bytes),
            (Some(link), Poll::Pending) => link.on_blocked(),
            _ => {}
        }
        written
    }
}

/// What requests know of their connection.
impl<S> Connected for Connection<S> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.over.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(written)
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
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
