//! Accepts connections. A failure, for example because the process has no free file descriptors, delays the next connection and
//! does not end the listener.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::net::{TcpListener, TcpStream};

/// Pause after a failed accept. Without it, a listener without file descriptors would use a whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns the next connection of a listener. `poll_accept` is the listener's method with this name. Dropping the future loses no
/// connection.
pub async fn accept_next<T>(poll_accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<T>>) -> T {
    loop {
        match poll_fn(&poll_accept).await {
            Ok(accepted) => return accepted,
            Err(error) => tracing::warn!(%error, "cannot accept a connection"),
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Returns the accepted connections of a listener without TLS.
pub fn plain_connections(listener: TcpListener) -> BoxStream<'static, TcpStream> {
    let accepted = stream::unfold(listener, |listener| async move {
        let (stream, _) = accept_next(|cx| listener.poll_accept(cx)).await;
        Some((stream, listener))
    });
    accepted.boxed()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_listener_without_file_descriptors_pauses_and_continues() {
        let (started, attempts) = (Instant::now(), Cell::new(0));
        let connection = accept_next(|_| {
            attempts.set(attempts.get() + 1);
            // EMFILE.
            let full = io::Error::from_raw_os_error(24);
            Poll::Ready(if attempts.get() > 10 { Ok("connection") } else { Err(full) })
        });
        assert_eq!(connection.await, "connection");
        assert_eq!(attempts.get(), 11);
        assert!(started.elapsed() >= 10 * ACCEPT_PAUSE, "{:?}", started.elapsed());
    }
}
