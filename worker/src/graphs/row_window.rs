//! Reads the rows of features that are not in memory, for several batches at once. While the rows of some batches are read, other
//! batches are sampled and wait together. Their rows are then read as one sorted set without duplicates, and the last of these
//! batches releases them. The rows of a batch do not depend on the batches with which they are read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_data::memory::MemoryAccount;
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::job_features::{JobFeature, JobFeatures};
use crate::engine::{FeatureRef, FetchedRows, MemoryBudget, MissingRows};

/// Maximum number of batches whose rows are read together.
pub(super) const WINDOW_BATCHES: usize = 8;
/// The unit of the limit of rows in memory.
const UNIT_BYTES: u64 = 1 << 10;

/// The rows of a window, for all of its batches.
type WindowResult = Result<Arc<FetchedRows>, String>;
type WindowLoad = Shared<BoxFuture<'static, WindowResult>>;

/// The memory of the rows that are read for batches, for all jobs of a worker.
#[derive(Debug, Clone)]
pub(super) struct RowMemory {
    budget: Arc<MemoryBudget>,
    /// Units of memory.
    free: Arc<Semaphore>,
    units: u32,
}

/// The windows of one job.
pub(super) struct RowWindows {
    features: JobFeatures,
    memory: RowMemory,
    /// Maximum number of batches in a window.
    batches: usize,
    /// One window is read at a time, so that others collect batches.
    turn: Semaphore,
    open: Mutex<Option<OpenWindow>>,
}

/// The window that batches join.
struct OpenWindow {
    batches: Arc<WindowBatches>,
    load: WeakShared<BoxFuture<'static, WindowResult>>,
}

/// The rows that each batch of a window needs. `None` as soon as they are being read.
type WindowBatches = Mutex<Option<Vec<MissingRows>>>;

impl fmt::Debug for RowWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowWindows").field("batches", &self.batches).finish_non_exhaustive()
    }
}

impl RowMemory {
    /// Limits the rows of all windows to `limit_bytes`, except those of a single batch.
    pub(super) fn new(budget: Arc<MemoryBudget>, limit_bytes: u64) -> Self {
        let units = u32::try_from(limit_bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        Self { budget, free: Arc::new(Semaphore::new(units as usize)), units }
    }

    fn limit_bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    /// Waits until rows fit in the limit. A larger set waits until no other rows are in memory.
    async fn acquire(&self, bytes: u64) -> Result<OwnedSemaphorePermit, String> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        Arc::clone(&self.free).acquire_many_owned(units).await.map_err(|error| error.to_string())
    }
}

impl RowWindows {
    pub(super) fn new(features: JobFeatures, memory: RowMemory, batches: usize) -> Arc<Self> {
        let turn = Semaphore::new(1);
        Arc::new(Self { features, memory, batches: batches.max(1), turn, open: Mutex::default() })
    }

    /// Returns a feature of the job.
    ///
    /// # Errors
    /// Returns a message if the job has not loaded it.
    pub(super) fn feature(&self, feature: FeatureRef) -> Result<&JobFeature, String> {
        let found = self.features.get(&feature);
        found.ok_or_else(|| "the job has not loaded this feature; please report this".to_owned())
    }

    /// The features of the job.
    pub(super) fn features(&self) -> impl Iterator<Item = &JobFeature> {
        self.features.values()
    }

    /// Reads the rows of a batch, together with those of batches that wait at the same time.
    pub(super) fn fetch(self: &Arc<Self>, missing: MissingRows) -> BoxFuture<'static, WindowResult> {
        let most_bytes = self.memory.budget.bytes_beside_graphs() / 2;
        let bytes = self.bytes_of(&missing);
        if bytes > most_bytes {
            let message = format!(
                "a batch needs {} MiB of rows of features that are not in memory, but this worker has only {} MiB for them; set smaller \
                 fanouts or a smaller size of sample_neighbors, or raise the workers' --memory",
                bytes.div_ceil(1 << 20),
                most_bytes >> 20
            );
            return std::future::ready(Err(message)).boxed();
        }
        self.join(missing).boxed()
    }

    /// Adds a batch to the open window, or opens one.
    fn join(self: &Arc<Self>, missing: MissingRows) -> WindowLoad {
        let mut open = lock(&self.open);
        let missing = match open.as_ref().and_then(|window| Some((window, window.load.upgrade()?))) {
            Some((window, load)) => match self.add(&window.batches, missing) {
                Ok(()) => return load,
                Err(missing) => missing,
            },
            None => missing,
        };
        let batches = Arc::new(Mutex::new(Some(vec![missing])));
        let load = Arc::clone(self).read(Arc::clone(&batches)).boxed().shared();
        *open = load.downgrade().map(|load| OpenWindow { batches, load });
        load
    }

    /// Adds a batch to a window. Returns the batch if the window is full or being read.
    fn add(&self, window: &WindowBatches, missing: MissingRows) -> Result<(), MissingRows> {
        let mut window = lock(window);
        let Some(batches) = window.as_mut().filter(|batches| batches.len() < self.batches) else {
            return Err(missing);
        };
        let others: u64 = batches.iter().map(|batch| self.bytes_of(batch)).sum();
        if others.saturating_add(self.bytes_of(&missing)) > self.memory.limit_bytes() {
            return Err(missing);
        }
        batches.push(missing);
        Ok(())
    }

    /// The size of rows in memory.
    fn bytes_of(&self, missing: &MissingRows) -> u64 {
        let bytes = |(feature, rows): (&FeatureRef, &Vec<u64>)| {
            let row_bytes = self.feature(*feature).map_or(0, |feature| feature.loaded().row_bytes());
            row_bytes.saturating_add(size_of::<u64>() as u64).saturating_mul(rows.len() as u64)
        };
        missing.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Reads the rows of all batches of a window when the window before has been read.
    async fn read(self: Arc<Self>, window: Arc<WindowBatches>) -> WindowResult {
        let _turn = self.turn.acquire().await.map_err(|error| error.to_string())?;
        let batches = lock(&window).take().unwrap_or_default();
        let missing = merge(batches);
        let bytes = self.bytes_of(&missing);
        let permit = self.memory.acquire(bytes).await?;
        let mut reservation = self.memory.budget.reserve(MemoryAccount::EncodedRows, bytes);
        let mut features = BTreeMap::new();
        for (feature, rows) in missing {
            let data = self.feature(feature)?;
            reservation.resize(bytes.saturating_add(data.reading_bytes(rows.len() as u64)));
            let rows = data.read_rows(rows).await?;
            reservation.resize(bytes);
            features.insert(feature, rows);
        }
        Ok(Arc::new(FetchedRows { features, _reservation: reservation, _permit: permit }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the rows that at least one batch needs.
fn merge(batches: Vec<MissingRows>) -> MissingRows {
    let mut all = MissingRows::new();
    for (feature, rows) in batches.into_iter().flatten() {
        all.entry(feature).or_default().extend(rows);
    }
    for rows in all.values_mut() {
        rows.sort_unstable();
        rows.dedup();
    }
    all
}

#[cfg(test)]
mod tests;
