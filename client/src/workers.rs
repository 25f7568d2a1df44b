//! Connects to workers by address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, WorkerAddress};
use feedline_proto::WorkerService;
use feedline_proto::grpc::connect_worker_over;
use feedline_proto::local::Transport;

use crate::metrics::count_received;

/// Maximum number of workers with cached connections. Idle connections are cheap, but workers may join and leave repeatedly.
const MAX_CACHED_WORKERS: usize = 256;
/// Number of connections to a worker on another host. Each connection uses one core, which is too slow for a fast worker.
const REMOTE_CONNECTIONS: usize = 4;

/// Finds workers by address.
pub trait WorkerDirectory: Send + Sync {
    /// Returns the worker at this address.
    ///
    /// # Errors
    /// Returns an error if the address is invalid. An unreachable worker is not an error, but the first request to it fails.
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError>;
}

/// Connects to workers with gRPC, and caches the connections.
#[derive(Default)]
pub struct GrpcWorkers {
    transport: Transport,
    credentials: Credentials,
    connected: Mutex<HashMap<WorkerAddress, WorkerConnections>>,
}

impl GrpcWorkers {
    /// Creates a directory of workers that send batches with this transport.
    pub fn new(transport: Transport, credentials: Credentials) -> Self {
        Self { transport, credentials, ..Self::default() }
    }
}

impl WorkerDirectory for GrpcWorkers {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let connect = || connect_worker_over(address, &self.credentials, self.transport, count_received);
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = connected.get_mut(address) {
            return connections.select(connect);
        }
        let mut connections = WorkerConnections::default();
        let worker = connections.select(connect)?;
        if connected.len() >= MAX_CACHED_WORKERS {
            // Running fetches keep their connections open.
            connected.clear();
        }
        connected.insert(address.clone(), connections);
        Ok(worker)
    }
}

/// The connections to one worker.
#[derive(Default)]
struct WorkerConnections {
    connections: Vec<Arc<dyn WorkerService>>,
    last: usize,
}

impl WorkerConnections {
    /// Returns the connection for the next fetch. Uses [`REMOTE_CONNECTIONS`] connections in turn if the worker is on another host.
    fn select(
        &mut self,
        connect: impl FnOnce() -> Result<Arc<dyn WorkerService>, ServiceError>,
    ) -> Result<Arc<dyn WorkerService>, ServiceError> {
        // The first connection detects whether the worker is on another host.
        let is_remote = self.connections.first().is_some_and(|first| first.is_remote());
        let max = if is_remote { REMOTE_CONNECTIONS } else { 1 };
        if self.connections.len() < max {
            self.connections.push(connect()?);
        }
        self.last = (self.last + 1) % self.connections.len();
        Ok(Arc::clone(&self.connections[self.last]))
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use feedline_proto::services::{FetchRequest, Frame};
    use futures::stream::BoxStream;

    use super::*;

    struct IdleWorker {
        is_remote: bool,
    }

    #[async_trait]
    impl WorkerService for IdleWorker {
        async fn fetch(
            &self,
            _: BoxStream<'static, FetchRequest>,
        ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
            panic!("the test sends no fetch")
        }

        fn is_remote(&self) -> bool {
            self.is_remote
        }
    }

    #[test]
    fn fetches_use_several_connections_to_another_host_in_turn() {
        for (is_remote, expected) in [(true, REMOTE_CONNECTIONS), (false, 1)] {
            let mut connections = WorkerConnections::default();
            let mut selected = Vec::new();
            for _ in 0..8 {
                let connect = || Ok(Arc::new(IdleWorker { is_remote }) as Arc<dyn WorkerService>);
                let worker = connections.select(connect).unwrap();
                selected.push(Arc::as_ptr(&worker).cast::<u8>() as usize);
            }
            let last: std::collections::BTreeSet<usize> = selected[8 - expected..].iter().copied().collect();
            assert_eq!((connections.connections.len(), last.len()), (expected, expected));
        }
    }
}
