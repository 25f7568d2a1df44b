//! Doors: what of a service whoever shows a token may use.

use std::sync::Arc;

use feedline_data::messages::ServiceError;

use crate::services::{CoordinatorService, PeerService};

/// The way to a service.
pub trait Authenticator<S: ?Sized>: Send + Sync {
    /// The service as the holder of this token may use it.
    ///
    /// # Errors
    /// `Denied`, when the holder may use nothing of it.
    fn enter(&self, token: Option<&str>) -> Result<Arc<S>, ServiceError>;

    /// Whether the holder of this token, who has entered, may send messages as large as only workers and coordinators have.
    fn admits_large(&self, _token: Option<&str>) -> bool {
        true
    }
}

/// A door that is open to everybody.
pub struct AllowAll<S: ?Sized>(pub Arc<S>);

impl<S: ?Sized + Send + Sync> Authenticator<S> for AllowAll<S> {
    fn enter(&self, _: Option<&str>) -> Result<Arc<S>, ServiceError> {
        Ok(Arc::clone(&self.0))
    }
}

/// The doors of a coordinator.
#[derive(Clone)]
pub struct Authenticators {
    /// For clients, workers and administrators.
    pub coordinator: Arc<dyn Authenticator<dyn CoordinatorService>>,
    /// For other coordinators.
    pub peer: Arc<dyn Authenticator<dyn PeerService>>,
}

impl Authenticators {
    /// Doors that are open to everybody.
    pub fn open(coordinator: Arc<dyn CoordinatorService>, peer: Arc<dyn PeerService>) -> Self {
        Self { coordinator: Arc::new(AllowAll(coordinator)), peer: Arc::new(AllowAll(peer)) }
    }
}
