//! Permissions of callers. A [`Guarded`] service is reachable only with a [`Permission`], so a layer that forwards a request
//! without a check of the caller's claims does not compile.

use std::sync::Arc;

use feedline_access::Claims;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::rpc::Access;

/// Proof that the claims of a caller allow an RPC. Only [`require`] creates it.
pub(super) struct Permission(());

/// A service that requires a permission.
pub(super) struct Guarded<S: ?Sized>(Arc<S>);

impl<S: ?Sized> Guarded<S> {
    pub(super) fn new(service: Arc<S>) -> Self {
        Self(service)
    }

    pub(super) fn get(&self, _: &Permission) -> &Arc<S> {
        &self.0
    }
}

/// Rejects a caller without access.
pub(super) fn require(claims: &Claims, access: Access) -> Result<Permission, ServiceError> {
    let (scopes, action) = match access {
        Access::Scopes(scopes, action) => (scopes, action),
        // The token is already verified.
        Access::AnyToken | Access::Open => return Ok(Permission(())),
        Access::Ticket => {
            return Err(denied("only workers accept tickets; use a token for requests to the coordinator"));
        }
    };
    if claims.has_any_scope(scopes) {
        return Ok(Permission(()));
    }
    let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
    Err(denied(format!(
        "the token of `{}` is not allowed to {action}; use a token with the scope {}",
        claims.holder,
        names.join(" or ")
    )))
}

pub(super) fn denied(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Denied, message)
}
