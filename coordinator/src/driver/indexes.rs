//! Indexes of datasets: kept by a majority before a job starts, and found again when a coordinator begins to lead.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;

use super::Driver;
use crate::index_store::IndexStore;

/// Work on indexes that a thread or a request is at.
pub(super) enum IndexEvent {
    /// An index is kept by a majority, or cannot be: one sentence.
    Saved(JobId, Result<(), String>),
    /// A saved index for a job that prepares its dataset.
    Loaded(JobId, Option<Arc<Manifest>>),
}

impl Driver {
    pub(super) fn on_loaded(&mut self, job: JobId, saved: Option<Arc<Manifest>>) {
        if let (Some(cluster), Some(saved)) = (self.parts.member.cluster_mut(), saved) {
            cluster.set_saved(job, saved);
        }
        self.loading = self.loading.saturating_sub(1);
        if self.loading == 0 {
            self.release_held();
        }
    }

    pub(super) fn release_held(&mut self) {
        for input in self.held.take() {
            self.take(input);
        }
    }

    /// Has an index kept here and by so many others that a majority has it.
    pub(super) fn save(&mut self, job: JobId, key: String, manifest: Arc<Manifest>) {
        let (store, peers) = (Arc::clone(&self.parts.store), Arc::clone(&self.parts.peers));
        let others = self.parts.member.voters() / 2;
        self.indexes.spawn(async move {
            let (own, kept) = (Arc::clone(&manifest), key.clone());
            let saved = tokio::task::spawn_blocking(move || store.save(&kept, &own)).await;
            let saved = saved.unwrap_or_else(|error| Err(format!("saving the index failed: {error}")));
            let saved = match saved {
                Ok(()) => peers.keep_index(others, &key, &manifest).await,
                failed => failed,
            };
            IndexEvent::Saved(job, saved)
        });
    }
}

/// A saved index; one that cannot be read is made again.
pub(super) fn load(store: &IndexStore, key: &str) -> Option<Arc<Manifest>> {
    store.load(key).unwrap_or_else(|message| {
        tracing::warn!("{message}; the dataset is indexed again");
        None
    })
}
