//! The table of parts in memory: which parts are loaded or being loaded, and which of them are evicted to make room for others.

mod fit;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use feedline_data::memory::MemoryAccount;
use feedline_data::messages::HeldGraph;
use feedline_graph::GraphFolder;
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared, ready};

use super::block_disk::BlockDisk;
use super::part::{LoadedPart, PartKey, PartRequest};
use crate::engine::MemoryBudget;
use crate::metrics;

/// The result of loading a part, for all jobs that wait for it.
type LoadResult = Result<LoadedPart, String>;
/// A load that several jobs await. It makes progress while at least one job awaits it, and is cancelled when none does.
pub(super) type PartLoad = Shared<BoxFuture<'static, LoadResult>>;

/// The parts of one worker.
#[derive(Debug)]
pub(super) struct PartTable {
    budget: Arc<MemoryBudget>,
    limit_bytes: u64,
    /// The directory for graphs that do not fit in memory.
    disk: Option<BlockDisk>,
    state: Mutex<TableState>,
    /// Whether a part may be unused.
    has_unused: AtomicBool,
}

#[derive(Debug, Default)]
struct TableState {
    parts: BTreeMap<PartKey, PartEntry>,
    /// The number of uses so far, which orders the uses of all parts.
    uses: u64,
}

#[derive(Debug)]
struct PartEntry {
    bytes: u64,
    /// The number of rows of a feature in memory.
    hot_rows: u64,
    last_use: u64,
    state: PartState,
}

#[derive(Debug)]
enum PartState {
    Loading(WeakShared<BoxFuture<'static, LoadResult>>),
    Loaded(LoadedPart),
}

/// The parts of a job: loads to await, and evicted parts to drop before them. Dropping a large part takes a while.
#[derive(Debug)]
pub(super) struct AcquiredParts {
    pub(super) loads: Vec<PartLoad>,
    pub(super) evicted: Vec<LoadedPart>,
}

/// The parts of a job do not fit in the memory for graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// They are larger than all of this memory.
    TooLarge { needed: u64, limit: u64 },
    /// Parts that other jobs use leave too little memory.
    InUse { needed: u64, used: u64, limit: u64 },
}

/// Marks parts as used by a job. Drop it after the parts themselves.
#[derive(Debug)]
pub(super) struct PartUse {
    table: Arc<PartTable>,
    keys: Vec<PartKey>,
}

impl PartTable {
    pub(super) fn new(budget: Arc<MemoryBudget>, limit_bytes: u64, disk: Option<BlockDisk>) -> Arc<Self> {
        Arc::new(Self {
            budget,
            limit_bytes,
            disk,
            state: Mutex::default(),
            has_unused: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all rows of the requested features fit beside the parts that other jobs use.
    pub(super) fn has_room(&self, requests: &[PartRequest]) -> bool {
        self.lock().fit(requests, self.limit_bytes, self.disk.is_some()) == requests
    }

    /// Returns a load for each part. Parts that are loaded or being loaded are shared. Makes room for the others by evicting parts
    /// that no job uses. If they do not fit, only the first rows of features are loaded.
    pub(super) fn acquire(
        self: &Arc<Self>,
        folder: &Arc<GraphFolder>,
        requests: &[PartRequest],
    ) -> Result<AcquiredParts, NoRoom> {
        let mut state = self.lock();
        state.remove_cancelled();
        let failed = state.remove_failed();
        let fitting = state.fit(requests, self.limit_bytes, self.disk.is_some());
        let (fitting, mut evicted) = match state.make_room(&fitting, self.limit_bytes) {
            Ok(evicted) => (fitting, evicted),
            Err(error) => {
                // Features that no job uses can be loaded again with fewer rows in memory.
                let mut evicted = state.remove_unused_features(requests);
                if evicted.is_empty() {
                    return Err(error);
                }
                let fitting = state.fit(requests, self.limit_bytes, self.disk.is_some());
                match state.make_room(&fitting, self.limit_bytes) {
                    Ok(others) => evicted.extend(others),
                    Err(error) => {
                        // Dropping a large part takes a while.
                        drop(state);
                        return Err(error);
                    }
                }
                (fitting, evicted)
            }
        };
        evicted.extend(failed);
        let loads = fitting.iter().map(|request| self.load(&mut state, folder, request)).collect();
        drop(state);
        if !evicted.is_empty() {
            self.publish();
        }
        Ok(AcquiredParts { loads, evicted })
    }

    fn load(
        self: &Arc<Self>,
        table: &mut TableState,
        folder: &Arc<GraphFolder>,
        request: &PartRequest,
    ) -> PartLoad {
        table.uses += 1;
        let last_use = table.uses;
        if let Some(entry) = table.parts.get_mut(&request.key) {
            entry.last_use = last_use;
            match &entry.state {
                PartState::Loaded(part) => return ready(Ok(part.clone())).boxed().shared(),
                PartState::Loading(load) => {
                    if let Some(load) = load.upgrade() {
                        return load;
                    }
                }
            }
        }
        let load = Arc::clone(self).run_load(Arc::clone(folder), request.clone()).boxed().shared();
        if let Some(weak) = load.downgrade() {
            let hot_rows = request.rows.as_ref().map_or(0, |rows| rows.hot);
            let state = PartState::Loading(weak);
            let entry = PartEntry { bytes: request.bytes, hot_rows, last_use, state };
            table.parts.insert(request.key, entry);
        }
        load
    }

    /// Loads a part. Its memory is reserved first, so that the engine starts no groups that need it.
    async fn run_load(self: Arc<Self>, folder: Arc<GraphFolder>, request: PartRequest) -> LoadResult {
        let started = Instant::now();
        let loaded = self.load_part(&folder, &request).await;
        metrics::count_graph_load(started.elapsed());
        self.finish(request.key, loaded.as_ref().ok());
        loaded
    }

    async fn load_part(&self, folder: &GraphFolder, request: &PartRequest) -> LoadResult {
        let reservation = self.budget.reserve(MemoryAccount::Graphs, request.loading_bytes());
        let needs_disk = request.is_mapped() || (request.is_partial() && !folder.is_local());
        let disk = match &self.disk {
            Some(disk) if needs_disk => Some(disk.open().await?),
            _ => None,
        };
        request.load(folder, disk, reservation).await.map_err(|error| error.to_string())
    }

    /// Replaces a load by its result. A load that failed is removed, so that the next job repeats it.
    fn finish(&self, key: PartKey, loaded: Option<&LoadedPart>) {
        let mut state = self.lock();
        match loaded {
            Some(part) => {
                if let Some(entry) = state.parts.get_mut(&key) {
                    entry.state = PartState::Loaded(part.clone());
                }
            }
            None => drop(state.parts.remove(&key)),
        }
        drop(state);
        // The job that loads the part may be gone before it uses it.
        self.has_unused.store(true, Ordering::Relaxed);
        self.publish();
    }

    /// Marks parts as used until the result is dropped.
    pub(super) fn start_use(self: &Arc<Self>, requests: &[PartRequest]) -> PartUse {
        let keys = requests.iter().map(|request| request.key).collect();
        PartUse { table: Arc::clone(self), keys }
    }

    /// Whether a part may be unused.
    pub(super) fn has_unused(&self) -> bool {
        self.has_unused.load(Ordering::Relaxed)
    }

    /// Evicts the least recently used part that no job uses.
    pub(super) fn evict_unused(&self) -> Option<LoadedPart> {
        // Cleared first, so that a part that becomes unused during the search is found later.
        self.has_unused.store(false, Ordering::Relaxed);
        let evicted = self.lock().evict_least_recent(&[]);
        if evicted.is_some() {
            self.has_unused.store(true, Ordering::Relaxed);
            self.publish();
        }
        evicted.map(|(_, part)| part)
    }

    /// The graphs whose topologies are in memory.
    pub(super) fn held(&self) -> Vec<HeldGraph> {
        let state = self.lock();
        let topology = |(key, entry): (&PartKey, &PartEntry)| match (key, &entry.state) {
            (PartKey::Topology(topology), PartState::Loaded(_)) => {
                Some(HeldGraph { topology: *topology, bytes: entry.bytes })
            }
            _ => None,
        };
        state.parts.iter().filter_map(topology).collect()
    }

    /// Updates the metrics of the loaded parts.
    fn publish(&self) {
        metrics::set_loaded_graphs(self.held().len());
    }
}

impl TableState {
    /// Removes loads that no job awaits any longer.
    fn remove_cancelled(&mut self) {
        self.parts.retain(|_, entry| match &entry.state {
            PartState::Loading(load) => load.upgrade().is_some(),
            PartState::Loaded(_) => true,
        });
    }

    /// Evicts unused parts until all requested parts fit. Evicts nothing if they cannot fit.
    fn make_room(&mut self, requests: &[PartRequest], limit: u64) -> Result<Vec<LoadedPart>, NoRoom> {
        let requested: BTreeMap<PartKey, u64> =
            requests.iter().map(|request| (request.key, request.bytes)).collect();
        let needed = total(requested.values().copied());
        if needed > limit {
            return Err(NoRoom::TooLarge { needed, limit });
        }
        let in_use =
            total(self.others(&requested).filter(|entry| !entry.is_unused()).map(|entry| entry.bytes));
        if needed.saturating_add(in_use) > limit {
            return Err(NoRoom::InUse { needed, used: in_use, limit });
        }
        let mut used = total(self.others(&requested).map(|entry| entry.bytes));
        let kept: Vec<PartKey> = requested.keys().copied().collect();
        let mut evicted = Vec::new();
        while needed.saturating_add(used) > limit
            && let Some((bytes, part)) = self.evict_least_recent(&kept)
        {
            used -= bytes;
            evicted.push(part);
        }
        Ok(evicted)
    }

    /// The parts that are not requested.
    fn others<'a>(
        &'a self,
        requested: &'a BTreeMap<PartKey, u64>,
    ) -> impl Iterator<Item = &'a PartEntry> + 'a {
        let others = self.parts.iter().filter(|(key, _)| !requested.contains_key(*key));
        others.map(|(_, entry)| entry)
    }

    /// Removes the least recently used part that no job uses, except those to keep. Returns its size and the part.
    fn evict_least_recent(&mut self, kept: &[PartKey]) -> Option<(u64, LoadedPart)> {
        let unused = self.parts.iter().filter(|(key, entry)| entry.is_unused() && !kept.contains(key));
        let key = *unused.min_by_key(|(_, entry)| entry.last_use)?.0;
        let entry = self.parts.remove(&key)?;
        match entry.state {
            PartState::Loaded(part) => Some((entry.bytes, part)),
            PartState::Loading(_) => None,
        }
    }
}

fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

impl PartEntry {
    /// Whether the part is loaded, and no job uses it.
    fn is_unused(&self) -> bool {
        matches!(&self.state, PartState::Loaded(part) if part.is_unshared())
    }
}

impl Drop for PartUse {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        state.uses += 1;
        let last_use = state.uses;
        for key in &self.keys {
            if let Some(entry) = state.parts.get_mut(key) {
                entry.last_use = last_use;
            }
        }
        drop(state);
        self.table.has_unused.store(true, Ordering::Relaxed);
    }
}
