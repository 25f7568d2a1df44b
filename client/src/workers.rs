//! Connects to workers by address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_access::Credentials;
use feedline_data::messages::ServiceError;
use feedline_proto::WorkerService;
use feedline_proto::grpc::connect_worker_by;
use feedline_proto::local::Transport;

use crate::metrics::count_received;

/// Most cached connections. An idle connection is cheap, and workers join and leave.
const MAX_CONNECTIONS: usize = 256;

/// Finds workers by address.
pub trait WorkerDirectory: Send + Sync {
    /// Returns the worker at this address.
    ///
    /// # Errors
    /// When the address is invalid. The first request to an unreachable worker fails.
    fn worker(&self, address: &str) -> Result<Arc<dyn WorkerService>, ServiceError>;
}

/// Connects to workers by gRPC. Caches one connection to each.
#[derive(Default)]
pub struct GrpcWorkers {
    transport: Transport,
    credentials: Credentials,
    connected: Mutex<HashMap<String, Arc<dyn WorkerService>>>,
}

impl GrpcWorkers {
    /// Creates a directory of workers whose batches arrive by this transport.
    pub fn new(transport: Transport, credentials: Credentials) -> Self {
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
        if connected.len() >= MAX_CONNECTIONS {
            // Running fetches own their connections.
            connected.clear();
        }
        connected.insert(address.to_owned(), Arc::clone(&worker));
        Ok(worker)
    }
}
