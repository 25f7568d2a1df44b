//! The rows of node features that a consumer keeps in memory. The nodes come first in stored order, and workers omit their rows from
//! batches. The cache is empty until the rows are loaded, which begins when the first piece has arrived: then a worker holds the graph.

mod allocation;
mod cached_rows;
mod load;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feedline_data::ids::JobId;
use feedline_proto::{CoordinatorService, WorkerService};
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::cached_rows::CachedRows;
use self::load::load_features;

/// Pause after a failed attempt to load the rows. Another worker may have a newer release, or the worker may have lost its graph.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// The cache of one consumer.
pub(crate) struct FeatureCache {
    job: JobId,
    coordinator: Arc<dyn CoordinatorService>,
    limit_bytes: u64,
    state: Mutex<CacheState>,
}

enum CacheState {
    /// The rows are not loaded. Contains the earliest time of the next attempt, if an attempt has failed.
    Empty(Option<Instant>),
    /// The rows are being loaded by a task.
    Loading {
        _task: AbortOnDropHandle<()>,
    },
    Loaded(Arc<CachedRows>),
}

impl FeatureCache {
    /// Creates the cache of a consumer of a job. The rows have at most `limit_bytes`.
    pub(crate) fn new(job: JobId, coordinator: Arc<dyn CoordinatorService>, limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { job, coordinator, limit_bytes, state: Mutex::new(CacheState::Empty(None)) })
    }

    /// Returns the rows, or `None` while they are not loaded.
    pub(crate) fn loaded(&self) -> Option<Arc<CachedRows>> {
        match &*self.lock() {
            CacheState::Loaded(rows) if !rows.features.is_empty() => Some(Arc::clone(rows)),
            CacheState::Loaded(_) | CacheState::Empty(_) | CacheState::Loading { .. } => None,
        }
    }

    /// Loads the rows from a worker that has the graph of the job, unless they are loaded or being loaded. Returns immediately.
    pub(crate) fn start_loading(self: &Arc<Self>, worker: &Arc<dyn WorkerService>, ticket: &str) {
        let mut state = self.lock();
        let CacheState::Empty(retry_at) = *state else { return };
        if retry_at.is_some_and(|retry_at| Instant::now() < retry_at) {
            return;
        }
        let (worker, ticket) = (Arc::clone(worker), ticket.to_owned());
        let (job, coordinator, limit_bytes) = (self.job, Arc::clone(&self.coordinator), self.limit_bytes);
        let cache = Arc::downgrade(self);
        let task = tokio::spawn(async move {
            let loaded = load_features(&coordinator, worker.as_ref(), job, &ticket, limit_bytes).await;
            Self::finish_loading(&cache, loaded);
        });
        *state = CacheState::Loading { _task: AbortOnDropHandle::new(task) };
    }

    fn finish_loading(cache: &Weak<Self>, loaded: Result<CachedRows, String>) {
        let Some(cache) = cache.upgrade() else { return };
        let next = match loaded {
            Ok(rows) => {
                tracing::info!(
                    bytes = rows.bytes(),
                    features = rows.features.len(),
                    "the feature cache is loaded"
                );
                CacheState::Loaded(Arc::new(rows))
            }
            Err(message) => {
                tracing::warn!(message, "cannot load the feature cache; batches contain all rows");
                CacheState::Empty(Some(Instant::now() + RETRY_PAUSE))
            }
        };
        let previous = std::mem::replace(&mut *cache.lock(), next);
        // Aborts this task, which has ended.
        drop(previous);
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
