//! Channels to remote processes. A channel connects at its first request and reconnects after a lost connection.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use feedline_access::{ClientStream as TlsStream, Credentials, Tls, check_server_name};
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::Request;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::settings::{
    CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_FRAME_BYTES, WINDOW_BYTES,
};
use crate::rpc::{REQUEST_DEADLINE, Rpc};

/// Timeout for connecting, including the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(3);

/// Role and address of a remote process, for error messages.
#[derive(Debug, Clone)]
pub(super) struct RemoteName {
    /// `coordinator` or `worker`.
    pub(super) role: &'static str,
    /// Address of the process.
    pub(super) url: Arc<str>,
    /// Name that the certificate of the process must contain; `None` means the host of the address.
    tls_name: Option<Arc<str>>,
    /// Whether the connection uses TLS without a client certificate.
    lacks_client_certificate: bool,
    /// Whether the process has rejected the protocol version since its last response. The rejection is logged once.
    pub(super) has_other_version: Arc<AtomicBool>,
}

impl RemoteName {
    pub(super) fn new(role: &'static str, url: &str, credentials: &Credentials) -> Self {
        let has_certificate = credentials.tls.as_ref().is_some_and(|tls| tls.can_listen());
        let lacks_client_certificate = url.starts_with("https:") && !has_certificate;
        Self {
            role,
            url: url.into(),
            tls_name: None,
            lacks_client_certificate,
            has_other_version: Arc::default(),
        }
    }

    /// Creates the name of a worker.
    pub(super) fn of_worker(address: &WorkerAddress, credentials: &Credentials) -> Self {
        let tls_name = address.tls_name.as_deref().map(Arc::from);
        Self { tls_name, ..Self::new("worker", &address.url, credentials) }
    }

    /// Whether the address is a loopback address of this host.
    pub(super) fn is_loopback(&self) -> bool {
        self.url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(is_loopback))
    }

    /// Returns what to check after a connection failed with `cause`.
    pub(super) fn hint(&self, cause: &str) -> &'static str {
        if cause.contains("certificate not valid for name") {
            if self.role == "worker" {
                "; issue a certificate with this name, or start the worker with --tls-name and a name in its certificate"
            } else {
                "; issue a certificate with this name, or connect to a name in the certificate"
            }
        } else if cause.contains("invalid peer certificate") {
            "; set the trusted certificate authorities with --tls-ca"
        } else if self.lacks_client_certificate {
            "; if the server requires a client certificate, set --tls-cert and --tls-key"
        } else if self.url.starts_with("http:") {
            ""
        } else {
            "; check that the server uses TLS and trusts the CA of this certificate"
        }
    }
}

/// Adds the deadline of its RPC to a message.
pub(super) fn request<T>(rpc: &Rpc, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(deadline) = rpc.deadline {
        request.set_timeout(deadline);
    }
    request
}

/// Returns a channel to a remote process. The channel connects at its first request.
pub(super) fn connect_lazily(
    remote: &RemoteName,
    credentials: &Credentials,
) -> Result<Channel, ServiceError> {
    connect_lazily_within(remote, credentials, REQUEST_DEADLINE)
}

/// Like [`connect_lazily`], with a different timeout for requests.
pub(super) fn connect_lazily_within(
    remote: &RemoteName,
    credentials: &Credentials,
    timeout: Duration,
) -> Result<Channel, ServiceError> {
    let RemoteName { role, url, .. } = remote;
    let invalid = |fix: &str| {
        let message = format!("invalid {role} address `{url}`: {fix}");
        ServiceError::new(ServiceErrorKind::Invalid, message)
    };
    let form = "expected http://HOST:PORT or https://HOST:PORT";
    let endpoint = Endpoint::from_shared(url.to_string())
        .ok()
        .filter(|endpoint| endpoint.uri().host().is_some_and(|host| !host.is_empty()))
        .ok_or_else(|| invalid(form))?;
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(invalid("connecting requires a Tokio runtime; connect from within one"));
    }
    let scheme = endpoint.uri().scheme_str().unwrap_or_default().to_owned();
    let host = endpoint.uri().host().unwrap_or_default().to_owned();
    let endpoint = with_transport_settings(endpoint).timeout(timeout).tcp_nodelay(true);
    match scheme.as_str() {
        "http" if credentials.token.is_some() && !is_loopback(&host) => Err(ServiceError::new(
            ServiceErrorKind::Invalid,
            format!("the token is not sent to `{url}` because the connection is not encrypted; use https://"),
        )),
        "http" => Ok(endpoint.connect_lazy()),
        "https" => {
            let tls =
                credentials.tls().map_err(|reason| ServiceError::new(ServiceErrorKind::Invalid, reason))?;
            let name = remote.tls_name.clone();
            if let Some(reason) = name.as_deref().and_then(|name| check_server_name(name).err()) {
                return Err(invalid(&reason));
            }
            Ok(endpoint.connect_with_connector_lazy(TlsConnect::new(tls, name)))
        }
        _ => Err(invalid(form)),
    }
}

/// Whether a host name or address means this host.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Opens TLS connections. As for `http://` addresses, each connection resolves the host name again, and IPv6 and IPv4
/// addresses are raced (RFC 8305).
#[derive(Clone)]
struct TlsConnect {
    tls: Arc<Tls>,
    /// Name that the server's certificate must contain; `None` means the host of the address.
    name: Option<Arc<str>>,
    tcp: HttpConnector,
}

impl TlsConnect {
    fn new(tls: Arc<Tls>, name: Option<Arc<str>>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        Self { tls, name, tcp }
    }
}

impl Service<Uri> for TlsConnect {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, name, mut tcp } = self.clone();
        let connect = async move {
            let stream = tcp.call(uri.clone()).await.map_err(into_io_error)?.into_inner();
            let name = name.as_deref().unwrap_or_else(|| uri.host().unwrap_or_default());
            Ok(TokioIo::new(tls.connect(name, stream).await?))
        };
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS connection timed out");
            tokio::time::timeout(TLS_TIMEOUT, connect).await.map_err(late)?
        })
    }
}

/// Returns the I/O error that caused a failed connection.
fn into_io_error(error: impl Error + Send + Sync + 'static) -> io::Error {
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        Some(cause) => io::Error::new(cause.kind(), cause.to_string()),
        None => io::Error::other(error),
    }
}

/// Connects to the Unix socket at `path`.
///
/// # Errors
/// Returns a message if no process answers in time.
pub(super) async fn connect_local(path: &Path) -> Result<Channel, String> {
    let refused = |error: tonic::transport::Error| format!("cannot connect to {}: {error}", path.display());
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).map_err(refused)?;
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, with_transport_settings(endpoint).connect()).await;
    connected.map_err(|_| format!("connecting to {} timed out", path.display()))?.map_err(refused)
}

/// Sets timeouts, and the window and frame sizes with the highest throughput of batches.
fn with_transport_settings(endpoint: Endpoint) -> Endpoint {
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
