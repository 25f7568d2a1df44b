//! Dataset indexes. An index is saved by a majority before its job starts, and loaded when another coordinator becomes the
//! leader.

use std::sync::Arc;

use feedline_cluster::{IndexToSave, SavedIndexes};
use feedline_data::ids::JobId;
use feedline_data::manifest::ContentId;
use tokio::task::{JoinError, JoinSet};

use crate::index_store::{IndexStore, load_saved};
use crate::peers::Peers;

/// The outcome of one index task.
pub(super) enum IndexEvent {
    /// A majority has saved an index, or the index could not be saved. The error is one sentence.
    Saved(JobId, Result<(), String>),
    /// The saved indexes of a preparing job's source.
    Loaded(JobId, SavedIndexes),
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

    /// Loads the saved indexes of these jobs, by the key of the source and the content id of the start position. Requests wait
    /// until all are loaded.
    pub(super) fn load_all(&mut self, preparing: Vec<(JobId, String, ContentId)>) {
        self.loading = preparing.len();
        for (job, key, start) in preparing {
            let store = Arc::clone(&self.store);
            self.tasks.spawn_blocking(move || IndexEvent::Loaded(job, load(&store, &key, &start)));
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
    pub(super) fn save(&mut self, index: IndexToSave, others: usize) {
        let (store, peers) = (Arc::clone(&self.store), Arc::clone(&self.peers));
        self.tasks.spawn(async move {
            let IndexToSave { job, key, manifest, in_use } = index.clone();
            let own = move || store.save(&index.key, &index.manifest, &index.in_use);
            let saved = tokio::task::spawn_blocking(own).await;
            let saved = saved.unwrap_or_else(|error| Err(format!("failed to save the index: {error}")));
            let saved = match saved {
                Ok(()) => peers.store_index(others, &key, &manifest, &in_use).await,
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

/// Reads the saved indexes of a source. If the latest is unreadable, logs the error, and the dataset is indexed again.
fn load(store: &IndexStore, key: &str, start: &ContentId) -> SavedIndexes {
    load_saved(store, key, start).unwrap_or_else(|message| {
        tracing::warn!("{message}; indexing the dataset again");
        SavedIndexes::default()
    })
}
