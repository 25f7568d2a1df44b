//! The authentication layer. It authenticates a request by its headers before it reads the message, and limits the message
//! to the size that the method allows.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Request, Status};

use super::errors::to_status;
use super::version::{VersionCheck, bearer_token};
use crate::authenticator::Authenticator;
use crate::rpc::{self, MessageSize};

/// A service whose requests are authenticated.
pub struct AuthService<S: ?Sized, I> {
    authenticator: Arc<dyn Authenticator<S>>,
    /// Checks the protocol version, if clients send one.
    version_check: Option<VersionCheck>,
    /// The service for messages of each size.
    small: I,
    medium: I,
    large: I,
}

impl<S: ?Sized, I: Clone> Clone for AuthService<S, I> {
    fn clone(&self) -> Self {
        let Self { authenticator, version_check, small, medium, large } = self;
        Self {
            authenticator: Arc::clone(authenticator),
            version_check: *version_check,
            small: small.clone(),
            medium: medium.clone(),
            large: large.clone(),
        }
    }
}

impl<S: ?Sized, I> AuthService<S, I> {
    /// Wraps a service. `service` returns the service for messages of at most the given number of bytes.
    pub(super) fn new(
        authenticator: Arc<dyn Authenticator<S>>,
        version_check: Option<VersionCheck>,
        service: impl Fn(usize) -> I,
    ) -> Self {
        let [small, medium, large] =
            [MessageSize::Small, MessageSize::Medium, MessageSize::Large].map(|size| service(size.bytes()));
        Self { authenticator, version_check, small, medium, large }
    }

    /// Authenticates a request, puts the caller's service into the request, and returns the service for its message size.
    fn authenticate(&mut self, request: &mut http::Request<Body>) -> Result<&mut I, Status>
    where
        S: Send + Sync + 'static,
    {
        if let Some(version_check) = self.version_check {
            version_check.check(request.headers())?;
        }
        // The service rejects methods that are not in the table of RPCs, so a small limit suffices.
        let rpc = rpc::find(request.uri().path());
        let mut size = rpc.map_or(MessageSize::Small, |rpc| rpc.max_request);
        let token = bearer_token(request.headers()).map_err(to_status)?;
        let authenticated = self.authenticator.authenticate(token).map_err(to_status)?;
        if size == MessageSize::Large && !self.authenticator.allows_large_messages(token) {
            // The service decides whether the caller may call the method.
            size = MessageSize::Medium;
        }
        request.extensions_mut().insert(authenticated);
        Ok(match size {
            MessageSize::Small => &mut self.small,
            MessageSize::Medium => &mut self.medium,
            MessageSize::Piece | MessageSize::Large => &mut self.large,
        })
    }
}

impl<S: ?Sized, I: NamedService> NamedService for AuthService<S, I> {
    const NAME: &'static str = I::NAME;
}

impl<S, I> Service<http::Request<Body>> for AuthService<S, I>
where
    S: ?Sized + Send + Sync + 'static,
    I: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    I::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Services in this crate are always ready. Other services must be ready for all message sizes.
        for service in [&mut self.small, &mut self.medium, &mut self.large] {
            if service.poll_ready(cx)?.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match self.authenticate(&mut request) {
            Ok(service) => Box::pin(service.call(request)),
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}

/// Returns the service with the rights of the caller, which the authentication layer put into the request.
///
/// # Errors
/// Returns `internal` for a request that did not pass the authentication layer.
pub fn authenticated_service<S: ?Sized + Send + Sync + 'static, T>(
    request: &Request<T>,
) -> Result<Arc<S>, Status> {
    let found = request.extensions().get::<Arc<S>>().cloned();
    found.ok_or_else(|| Status::internal("the request was not authenticated; please report this bug"))
}
