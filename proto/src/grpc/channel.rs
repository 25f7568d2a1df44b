//! A connection to a peer that connects and reconnects by itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_core::cluster::messages::{Refusal, RefusalKind};
use tonic::transport::{Channel, Endpoint};

use super::{
    CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_FRAME_BYTES, REQUEST_TIMEOUT, WINDOW_BYTES,
};

/// Whom a client talks to, for messages.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// `coordinator` or `worker`.
    pub(super) role: &'static str,
    /// Its address.
    pub(super) url: Arc<str>,
}

/// A channel to the peer. Nothing is sent before the first request.
pub(super) fn connect_lazily(peer: &Peer) -> Result<Channel, Refusal> {
    connect_lazily_within(peer, REQUEST_TIMEOUT)
}

/// The same, with requests that take no longer than this.
pub(super) fn connect_lazily_within(peer: &Peer, timeout: Duration) -> Result<Channel, Refusal> {
    let Peer { role, url } = peer;
    let invalid =
        |fix: &str| Refusal::new(RefusalKind::Invalid, format!("`{url}` is no {role}'s address; {fix}"));
    let endpoint = Endpoint::from_shared(url.to_string())
        .ok()
        .filter(|endpoint| endpoint.uri().host().is_some_and(|host| !host.is_empty()))
        .ok_or_else(|| invalid("write it as http://HOST:PORT"))?;
    match endpoint.uri().scheme_str() {
        Some("http") => {}
        Some("https") => return Err(invalid("only http:// is spoken; write it as http://HOST:PORT")),
        _ => return Err(invalid("write it as http://HOST:PORT")),
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(invalid("connections need a tokio runtime, and there is none here"));
    }
    Ok(tuned(endpoint).timeout(timeout).tcp_nodelay(true).connect_lazy())
}

/// A channel to the Unix socket at `path`, connected.
///
/// # Errors
/// One clause, when nobody answers there in time.
pub(super) async fn connect_local(path: &Path) -> Result<Channel, String> {
    let refused = |error: tonic::transport::Error| format!("nothing answers at {}: {error}", path.display());
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).map_err(refused)?;
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, tuned(endpoint).connect()).await;
    connected.map_err(|_| format!("nothing answers in time at {}", path.display()))?.map_err(refused)
}

/// Timeouts, and the windows and frames that carry batches fastest.
fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
}
