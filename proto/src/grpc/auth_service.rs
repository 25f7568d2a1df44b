//! A service behind a door: who asks is known by the headers of a request, before any of its message is read; and a message
//! may be as large as its method needs, and no larger.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Request, Status};

use super::refusal::to_status;
use super::version::{check_version, shown_token};
use crate::authenticator::Authenticator;
use crate::rpc::{self, MessageSize};

/// A service that is reached by a door.
pub struct AuthService<S: ?Sized, I> {
    door: Arc<dyn Authenticator<S>>,
    /// What the server is, where clients say which version of the protocol they speak.
    role: Option<&'static str>,
    /// The service as it takes messages of each size.
    small: I,
    medium: I,
    large: I,
}

impl<S: ?Sized, I: Clone> Clone for AuthService<S, I> {
    fn clone(&self) -> Self {
        let Self { door, role, small, medium, large } = self;
        Self {
            door: Arc::clone(door),
            role: *role,
            small: small.clone(),
            medium: medium.clone(),
            large: large.clone(),
        }
    }
}

impl<S: ?Sized, I> AuthService<S, I> {
    /// What `service` makes for messages of so many bytes, behind the door.
    pub(super) fn new(
        door: Arc<dyn Authenticator<S>>,
        role: Option<&'static str>,
        service: impl Fn(usize) -> I,
    ) -> Self {
        let [small, medium, large] =
            [MessageSize::Small, MessageSize::Medium, MessageSize::Large].map(|size| service(size.bytes()));
        Self { door, role, small, medium, large }
    }

    /// What takes this request; it finds in the request what is behind the door.
    fn admit(&mut self, request: &mut http::Request<Body>) -> Result<&mut I, Status>
    where
        S: Send + Sync + 'static,
    {
        if let Some(role) = self.role {
            check_version(role, request.headers())?;
        }
        // A method without a row is refused by the service, which reads little of it.
        let rpc = rpc::find(request.uri().path());
        let mut size = rpc.map_or(MessageSize::Small, |rpc| rpc.max_request);
        let token = shown_token(request.headers()).map_err(to_status)?;
        let entered = self.door.enter(token).map_err(to_status)?;
        if size == MessageSize::Large && !self.door.admits_large(token) {
            // Whether the method is this holder's at all is for the service to say.
            size = MessageSize::Medium;
        }
        request.extensions_mut().insert(entered);
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
        // Services of this crate are always ready; those of others say so of all three at once.
        for service in [&mut self.small, &mut self.medium, &mut self.large] {
            if service.poll_ready(cx)?.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(service) => Box::pin(service.call(request)),
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}

/// The service as whoever sent this request may use it: what the request found behind the door.
///
/// # Errors
/// `internal`, for a request that came by no door.
pub fn entered<S: ?Sized + Send + Sync + 'static, T>(request: &Request<T>) -> Result<Arc<S>, Status> {
    let found = request.extensions().get::<Arc<S>>().cloned();
    found.ok_or_else(|| Status::internal("the request came by no door; please report this"))
}
