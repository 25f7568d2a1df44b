//! Connection information of requests: who called, and over which link.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::body_deadline::limit_body;
use super::link::ConnectionLink;
use crate::caller::Caller;
use crate::local::PeerProcess;

/// The connection of a request.
#[derive(Debug, Clone)]
pub(super) struct ConnectionInfo {
    /// The connected client.
    pub(super) caller: Caller,
    /// Throughput of the connection, if the client is on another host.
    pub(super) link: Option<ConnectionLink>,
    /// Process of the client, if it is connected through the local listener.
    pub(super) process: Option<PeerProcess>,
}

impl ConnectionInfo {
    /// A new TCP connection. `is_local` means that both ends are on this host.
    pub(super) fn network(is_local: bool) -> Self {
        // Compression never pays off between two processes on one host.
        Self { caller: Caller::unique(), link: (!is_local).then(ConnectionLink::default), process: None }
    }
}

/// Runs each request with its caller as the current caller, and limits the time in which its body must arrive.
#[derive(Debug, Clone)]
pub struct CallerService<S>(pub(super) S);

impl<S: NamedService> NamedService for CallerService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for CallerService<S>
where
    S: Service<http::Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let caller = request.extensions().get::<ConnectionInfo>().map(|connection| connection.caller);
        let response = self.0.call(limit_body(request));
        match caller {
            Some(caller) => Box::pin(caller.scope(response)),
            None => Box::pin(response),
        }
    }
}
