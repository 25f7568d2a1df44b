//! Caches one value per shard, such as a footer or header, for further blocks of the shard.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_data::manifest::ShardRef;
use tokio::sync::OnceCell;

use crate::error::SourceError;

/// Maximum number of cached shards. Footers are small, and consecutive reads use few shards.
const CAPACITY_SHARDS: usize = 256;

type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// The values of the most recently used shards, the oldest first.
pub(crate) struct ShardCache<T> {
    cells: Mutex<VecDeque<(ShardRef, Cell<T>)>>,
}

impl<T> Default for ShardCache<T> {
    fn default() -> Self {
        Self { cells: Mutex::default() }
    }
}

impl<T> ShardCache<T> {
    /// Returns the shard's value. Concurrent calls run `load` once.
    pub(crate) async fn get<F>(
        &self,
        shard: &ShardRef,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<T>, SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        let cell = self.cell(shard);
        let load = || async { Ok(Arc::new(load().await?)) };
        cell.get_or_try_init(load).await.cloned()
    }

    fn cell(&self, shard: &ShardRef) -> Cell<T> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cells.iter().rposition(|(known, _)| known == shard);
        let entry = at.and_then(|at| cells.remove(at)).unwrap_or_else(|| (shard.clone(), Cell::default()));
        let cell = entry.1.clone();
        if cells.len() == CAPACITY_SHARDS {
            cells.pop_front();
        }
        cells.push_back(entry);
        cell
    }
}
