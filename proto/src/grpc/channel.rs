//! A connection to a peer that connects and reconnects by itself.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use feedline_access::{ClientStream as TlsStream, Credentials, Tls};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_FRAME_BYTES, WINDOW_BYTES};
use crate::rpc::REQUEST_DEADLINE;

/// Time to connect and to prove to each other who is there.
const TLS_TIMEOUT: Duration = Duration::from_secs(3);
/// Port of an `https://` address that names none.
const HTTPS_PORT: u16 = 443;

/// Whom a client talks to, for messages.
#[derive(Debug, Clone)]
pub(super) struct RemoteName {
    /// `coordinator` or `worker`.
    pub(super) role: &'static str,
    /// Its address.
    pub(super) url: Arc<str>,
    /// Whether it speaks TLS and is shown no certificate.
    is_shown_none: bool,
}

impl RemoteName {
    pub(super) fn new(role: &'static str, url: &str, credentials: &Credentials) -> Self {
        let is_certified = credentials.tls.as_ref().is_some_and(|tls| tls.can_listen());
        Self { role, url: url.into(), is_shown_none: url.starts_with("https:") && !is_certified }
    }

    /// Whether its address is one of this host's own, which no network leads to.
    pub(super) fn is_loopback(&self) -> bool {
        self.url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(is_loopback))
    }

    /// What may be wrong beside what a connection died of.
    pub(super) fn hint(&self, cause: &str) -> &'static str {
        // The other end proved nothing, or what it did is not believed.
        if cause.contains("invalid peer certificate") {
            "; --tls-ca names the authorities whose certificates are trusted"
        } else if self.is_shown_none {
            "; it may ask for a certificate, which --tls-cert and --tls-key name"
        } else if self.url.starts_with("http:") {
            ""
        } else {
            "; does it trust the authority of this certificate, and speak TLS?"
        }
    }
}

/// A channel to the peer. Nothing is sent before the first request.
pub(super) fn connect_lazily(peer: &RemoteName, credentials: &Credentials) -> Result<Channel, ServiceError> {
    connect_lazily_within(peer, credentials, REQUEST_DEADLINE)
}

/// The same, with requests that take no longer than this.
pub(super) fn connect_lazily_within(
    peer: &RemoteName,
    credentials: &Credentials,
    timeout: Duration,
) -> Result<Channel, ServiceError> {
    let RemoteName { role, url, .. } = peer;
    let invalid = |fix: &str| {
        ServiceError::new(ServiceErrorKind::Invalid, format!("`{url}` is no {role}'s address; {fix}"))
    };
    let write = "write it as http://HOST:PORT or https://HOST:PORT";
    let endpoint = Endpoint::from_shared(url.to_string())
        .ok()
        .filter(|endpoint| endpoint.uri().host().is_some_and(|host| !host.is_empty()))
        .ok_or_else(|| invalid(write))?;
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(invalid("connections need a tokio runtime, and there is none here"));
    }
    let scheme = endpoint.uri().scheme_str().unwrap_or_default().to_owned();
    let host = endpoint.uri().host().unwrap_or_default().to_owned();
    let endpoint = tuned(endpoint).timeout(timeout).tcp_nodelay(true);
    match scheme.as_str() {
        "http" if credentials.token.is_some() && !is_loopback(&host) => Err(ServiceError::new(
            ServiceErrorKind::Invalid,
            format!(
                "the token is not sent to `{url}`, since everybody on the way could read it; use https://"
            ),
        )),
        "http" => Ok(endpoint.connect_lazy()),
        "https" => {
            let tls =
                credentials.tls().map_err(|reason| ServiceError::new(ServiceErrorKind::Invalid, reason))?;
            Ok(endpoint.connect_with_connector_lazy(TlsPeers(tls)))
        }
        _ => Err(invalid(write)),
    }
}

/// Whether a host is this one by its name.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Connects by TLS.
#[derive(Clone)]
struct TlsPeers(Arc<Tls>);

impl Service<Uri> for TlsPeers {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = Arc::clone(&self.0);
        let connect = async move {
            let host = uri.host().unwrap_or_default();
            let address = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((address, uri.port_u16().unwrap_or(HTTPS_PORT))).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(tls.connect(host, stream).await?))
        };
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS connection in time");
            tokio::time::timeout(TLS_TIMEOUT, connect).await.map_err(late)?
        })
    }
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
        .timeout(REQUEST_DEADLINE)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
}
