//! Connections of a worker to other workers, from which it requests rows of features.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, WorkerAddress};
use feedline_proto::grpc::connect_worker_over;
use feedline_proto::local::Transport;
use feedline_proto::services::WorkerService;
use feedline_worker::PeerWorkers;

/// Maximum number of cached connections. Idle connections are cheap, but workers may join and leave repeatedly.
const MAX_CONNECTIONS: usize = 256;

/// Connects to other workers with gRPC, and caches the connections.
pub(crate) struct PeerConnections {
    credentials: Credentials,
    connected: Mutex<HashMap<WorkerAddress, Arc<dyn WorkerService>>>,
}

impl PeerConnections {
    pub(crate) fn new(credentials: Credentials) -> Arc<Self> {
        Arc::new(Self { credentials, connected: Mutex::default() })
    }
}

impl PeerWorkers for PeerConnections {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = connected.get(address) {
            return Ok(Arc::clone(worker));
        }
        let worker = connect_worker_over(address, &self.credentials, Transport::Auto, |_, _| {})?;
        if connected.len() >= MAX_CONNECTIONS {
            // Running requests keep their connections open.
            connected.clear();
        }
        connected.insert(address.clone(), Arc::clone(&worker));
        Ok(worker)
    }
}
