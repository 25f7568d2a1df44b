//! How a client gets from a worker's address to its service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_access::Credentials;
use feedline_data::messages::ServiceError;
use feedline_proto::WorkerService;
use feedline_proto::grpc::connect_worker_by;
use feedline_proto::local::Transport;

use crate::metrics::count_received;

/// Connections that are kept; workers come and go, and an idle connection costs little.
const KEPT_CONNECTIONS: usize = 256;

/// Finds workers by address.
pub trait WorkerDirectory: Send + Sync {
    /// The worker at this address.
    ///
    /// # Errors
    /// When the address cannot be one. An unreachable worker shows at the first request.
    fn worker(&self, address: &str) -> Result<Arc<dyn WorkerService>, ServiceError>;
}

/// Workers behind gRPC. Keeps one connection to each.
#[derive(Default)]
pub struct GrpcWorkers {
    transport: Transport,
    credentials: Credentials,
    connected: Mutex<HashMap<String, Arc<dyn WorkerService>>>,
}

impl GrpcWorkers {
    /// Workers whose batches come by this way; the default is the shortest that there is.
    pub fn by(transport: Transport, credentials: Credentials) -> Self {
        Self { transport, credentials, ..Self::default() }
    }
}

impl WorkerDirectory for GrpcWorkers {
    fn worker(&self, address: &str) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = connected.get(address) {
            return Ok(Arc::clone(worker));
        }
        let worker = connect_worker_by(address, &self.credentials, self.transport, count_received)?;
        if connected.len() >= KEPT_CONNECTIONS {
            // Fetches in progress hold their own handle.
            connected.clear();
        }
        connected.insert(address.to_owned(), Arc::clone(&worker));
        Ok(worker)
    }
}
