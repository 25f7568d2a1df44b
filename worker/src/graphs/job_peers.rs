//! The workers of a job from which a worker requests rows of features.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_common::backoff::spread;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::{GatherRequest, WorkerService};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics;

/// Timeout for the rows of one request. A worker can read the rows from the graph in this time.
const GATHER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a worker that has failed receives no requests. Without it, each batch would wait for the timeout.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// Pause before the only retry of a request that a worker has rejected for the moment, unless the worker states another one.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause that a busy worker can request. The rows can also be read from the graph.
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Finds other workers by address.
pub trait PeerWorkers: Send + Sync {
    /// Returns the worker at this address.
    ///
    /// # Errors
    /// Returns an error if the address is invalid. An unreachable worker is not an error, but the first request to it fails.
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError>;
}

/// The workers of a job.
pub(crate) struct JobPeers {
    job: JobId,
    directory: Arc<OnceLock<Arc<dyn PeerWorkers>>>,
    state: Mutex<PeerState>,
}

#[derive(Default)]
struct PeerState {
    addresses: BTreeMap<WorkerId, WorkerAddress>,
    ticket: String,
    /// The end of the pause after a failure.
    paused: BTreeMap<WorkerId, Instant>,
}

/// Rows of a feature that another worker holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerRequest<'a> {
    pub(crate) feature: GraphHash,
    pub(crate) row_bytes: u32,
    pub(crate) rows: &'a [u32],
}

impl fmt::Debug for JobPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobPeers").field("job", &self.job).finish_non_exhaustive()
    }
}

impl JobPeers {
    /// Creates the peers of a job, of which no worker is known yet.
    pub(crate) fn new(job: JobId, directory: Arc<OnceLock<Arc<dyn PeerWorkers>>>) -> Arc<Self> {
        Arc::new(Self { job, directory, state: Mutex::default() })
    }

    /// Sets the workers of the job, including this worker, and the ticket for requests to them.
    pub(crate) fn set(&self, addresses: BTreeMap<WorkerId, WorkerAddress>, ticket: String) {
        let mut state = self.lock();
        state.paused.retain(|worker, _| addresses.contains_key(worker));
        state.addresses = addresses;
        state.ticket = ticket;
    }

    /// The workers of the job in ascending order.
    pub(crate) fn workers(&self) -> Vec<WorkerId> {
        self.lock().addresses.keys().copied().collect()
    }

    /// Requests rows from a worker. Returns `None` if the worker does not send them.
    pub(crate) async fn gather(&self, worker: WorkerId, request: PeerRequest<'_>) -> Option<Bytes> {
        let (address, ticket) = {
            let state = self.lock();
            if state.paused.get(&worker).is_some_and(|end| Instant::now() < *end) {
                return None;
            }
            (state.addresses.get(&worker)?.clone(), state.ticket.clone())
        };
        let PeerRequest { feature, row_bytes, rows } = request;
        let expected = rows.len() * row_bytes as usize;
        let request = || GatherRequest {
            job: self.job,
            feature,
            row_bytes,
            rows: rows.to_vec(),
            ticket: ticket.clone(),
        };
        let mut result = self.send(&address, request()).await;
        if let Err(error) = &result
            && error.kind.is_retryable()
            && !error.is_unreachable
        {
            let stated = error.retry_after_ms.map_or(RETRY_PAUSE, Duration::from_millis);
            sleep(spread(stated.min(MAX_RETRY_PAUSE))).await;
            result = self.send(&address, request()).await;
        }
        match result {
            Ok(bytes) if bytes.len() == expected => {
                metrics::count_gather_received(bytes.len() as u64);
                Some(bytes)
            }
            Ok(bytes) => {
                let received = bytes.len();
                tracing::warn!(job = %self.job, url = address.url, "a worker sent {received} bytes of rows instead of {expected}");
                None
            }
            Err(error) => {
                tracing::debug!(job = %self.job, url = address.url, %error, "reading rows from the graph instead of a worker");
                // A worker that is busy or still loading the job answers quickly.
                if error.kind == ServiceErrorKind::Unavailable {
                    self.lock().paused.insert(worker, Instant::now() + FAILURE_PAUSE);
                }
                None
            }
        }
    }

    async fn send(&self, address: &WorkerAddress, request: GatherRequest) -> Result<Bytes, ServiceError> {
        let Some(directory) = self.directory.get() else {
            let message = "this worker does not connect to other workers";
            return Err(ServiceError::new(ServiceErrorKind::NotFound, message));
        };
        let worker = directory.worker(address)?;
        let gathered = timeout(GATHER_TIMEOUT, worker.gather(request)).await;
        gathered.unwrap_or_else(|_| {
            let (url, seconds) = (&address.url, GATHER_TIMEOUT.as_secs());
            let message = format!("the worker at {url} did not send rows of a feature within {seconds} s");
            Err(ServiceError::unreachable(message))
        })
    }

    fn lock(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
