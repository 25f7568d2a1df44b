//! Requests that know over which connection they came.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::link::ConnectionLink;
use crate::caller::Caller;
use crate::local::PeerProcess;

/// What a request knows of its connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionInfo {
    /// Who is at the other end.
    pub(super) caller: Caller,
    /// How fast it is, where it leads to another host.
    pub(super) link: Option<ConnectionLink>,
    /// Whose it is, where it came by the entrance of this host.
    pub(super) process: Option<PeerProcess>,
}

impl ConnectionInfo {
    /// A new connection by a network, or between two ends of one host.
    pub(super) fn network(is_local: bool) -> Self {
        // Between two ends of one host nothing is faster than memory.
        Self { caller: Caller::next(), link: (!is_local).then(ConnectionLink::default), process: None }
    }
}

/// Answers requests in the name of their caller.
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
        let caller = request.extensions().get::<ConnectionInfo>().map(|over| over.caller);
        let answering = self.0.call(request);
        match caller {
            Some(caller) => Box::pin(caller.answers(answering)),
            None => Box::pin(answering),
        }
    }
}
