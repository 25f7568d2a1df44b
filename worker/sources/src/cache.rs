//! Caches one value per shard, such as a footer or header, which all blocks of the shard need.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_data::manifest::ShardRef;
use tokio::sync::OnceCell;

use crate::error::SourceError;

/// Maximum number of cached shards. Footers are small, and consecutive reads use few shards.
const CAPACITY_SHARDS: usize = 256;

type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// A cache with one value per shard, for the most recently used shards.
pub(crate) struct ShardCache<T> {
    /// The shards in order of use, the least recently used first.
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
        let position = cells.iter().rposition(|(cached, _)| cached == shard);
        let entry = position.and_then(|position| cells.remove(position));
        let entry = entry.unwrap_or_else(|| (shard.clone(), Cell::default()));
        let cell = entry.1.clone();
        if cells.len() == CAPACITY_SHARDS {
            cells.pop_front();
        }
        cells.push_back(entry);
        cell
    }
}
