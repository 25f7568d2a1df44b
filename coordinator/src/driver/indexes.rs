//! Dataset indexes. An index is saved by a majority before its job starts, and loaded when another coordinator becomes the
//! leader.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use tokio::task::{JoinError, JoinSet};

use crate::index_store::IndexStore;
use crate::peers::Peers;

/// The outcome of one index task.
pub(super) enum IndexEvent {
    /// A majority has saved an index, or the index could not be saved. The error is one sentence.
    Saved(JobId, Result<(), String>),
    /// The saved index of a preparing job; `None` if the dataset must be indexed again.
    Loaded(JobId, Option<Arc<Manifest>>),
}

/// The indexes that are being saved or loaded.
pub(super) struct IndexRequests {
    store: Arc<IndexStore>,
    peers: Arc<Peers>,
    tasks: JoinSet<IndexEvent>,
    loading: usize,
}

impl IndexRequests {
    pub(super) fn new(store: Arc<IndexStore>, peers: Arc<Peers>) -> Self {
        Self { store, peers, tasks: JoinSet::new(), loading: 0 }
    }

    /// Loads the saved indexes of these jobs, by key. Requests wait until all are loaded.
    pub(super) fn load_all(&mut self, preparing: Vec<(JobId, String)>) {
        self.loading = preparing.len();
        for (job, key) in preparing {
            let store = Arc::clone(&self.store);
            self.tasks.spawn_blocking(move || IndexEvent::Loaded(job, load(&store, &key)));
        }
    }

    /// Returns whether saved indexes are still being loaded.
    pub(super) fn is_loading(&self) -> bool {
        self.loading > 0
    }

    /// Counts a loaded index. Returns whether all indexes are loaded.
    pub(super) fn finish_loading(&mut self) -> bool {
        self.loading = self.loading.saturating_sub(1);
        self.loading == 0
    }

    /// Saves an index on this coordinator and on `others` other coordinators.
    pub(super) fn save(&mut self, job: JobId, key: String, manifest: Arc<Manifest>, others: usize) {
        let (store, peers) = (Arc::clone(&self.store), Arc::clone(&self.peers));
        self.tasks.spawn(async move {
            let (own, own_key) = (Arc::clone(&manifest), key.clone());
            let saved = tokio::task::spawn_blocking(move || store.save(&own_key, &own)).await;
            let saved = saved.unwrap_or_else(|error| Err(format!("failed to save the index: {error}")));
            let saved = match saved {
                Ok(()) => peers.store_index(others, &key, &manifest).await,
                failed => failed,
            };
            IndexEvent::Saved(job, saved)
        });
    }

    /// Stops all tasks, because this coordinator is no longer the leader.
    pub(super) fn abort_all(&mut self) {
        self.tasks.abort_all();
        self.loading = 0;
    }

    /// Returns the next outcome; `None` if no task runs. Cancel safe.
    pub(super) async fn join_next(&mut self) -> Option<Result<IndexEvent, JoinError>> {
        self.tasks.join_next().await
    }
}

/// Reads a saved index. If the index is unreadable, logs the error and returns `None`, so that the dataset is indexed again.
fn load(store: &IndexStore, key: &str) -> Option<Arc<Manifest>> {
    store.load(key).unwrap_or_else(|message| {
        tracing::warn!("{message}; indexing the dataset again");
        None
    })
}
