//! Authenticators, which decide on the rights that a token grants.

use std::sync::Arc;

use feedline_data::messages::ServiceError;

use crate::services::{CoordinatorService, PeerService};

/// Authenticates the callers of a service.
pub trait Authenticator<S: ?Sized>: Send + Sync {
    /// Returns the service with the rights of this token.
    ///
    /// # Errors
    /// Returns `Denied` if the token is invalid or grants no rights to the service.
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<S>, ServiceError>;

    /// Whether a caller with this valid token may send the large messages of workers and coordinators.
    fn allows_large_messages(&self, _token: Option<&str>) -> bool {
        true
    }
}

/// An authenticator that accepts every caller.
pub struct AllowAll<S: ?Sized>(pub Arc<S>);

impl<S: ?Sized + Send + Sync> Authenticator<S> for AllowAll<S> {
    fn authenticate(&self, _: Option<&str>) -> Result<Arc<S>, ServiceError> {
        Ok(Arc::clone(&self.0))
    }
}

/// The authenticators of a coordinator.
#[derive(Clone)]
pub struct Authenticators {
    /// For clients, workers and administrators.
    pub coordinator: Arc<dyn Authenticator<dyn CoordinatorService>>,
    /// For other coordinators.
    pub peer: Arc<dyn Authenticator<dyn PeerService>>,
}

impl Authenticators {
    /// Authenticators that accept every caller.
    pub fn allow_all(coordinator: Arc<dyn CoordinatorService>, peer: Arc<dyn PeerService>) -> Self {
        Self { coordinator: Arc::new(AllowAll(coordinator)), peer: Arc::new(AllowAll(peer)) }
    }
}
