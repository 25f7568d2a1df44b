//! Connections as they come, once they have proved who they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use crate::{Protocol, Tls};

/// Time that a client has to prove who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients that do so at once; more wait to be accepted.
const HANDSHAKES_AT_ONCE: usize = 1024;
/// Pause after the system could accept none, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections over which `protocol` can be spoken. Those that do not prove what they have to are closed without an
/// answer, and hold nobody up.
pub fn incoming(
    listener: TcpListener,
    tls: Arc<Tls>,
    protocol: Protocol,
) -> BoxStream<'static, TlsStream<TcpStream>> {
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
    let proved = accepted.map(move |stream| {
        let tls = Arc::clone(&tls);
        async move {
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream, protocol)).await;
            let late = |_| Err(io::ErrorKind::TimedOut.into());
            let proved = handshake.unwrap_or_else(late).and_then(|stream| {
                stream.get_ref().0.set_nodelay(true)?;
                Ok(stream)
            });
            proved.inspect_err(|error| tracing::debug!(%error, "a connection did not prove who it is")).ok()
        }
    });
    proved.buffer_unordered(HANDSHAKES_AT_ONCE).filter_map(std::future::ready).boxed()
}
