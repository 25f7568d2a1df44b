//! A feature of which each worker of a job holds only some slices in memory.
//!
//! A slice is read from the graph when its rows are first requested, by this worker or by another one, and stays in memory. Rows of
//! other workers are requested from them. Rows that another worker does not send are read from the graph, so a worker that has died
//! changes no row. The same holds while the workers of the job change: the new owner of a slice reads it from the graph.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use feedline_data::graph::FeaturePlacement;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::WorkerId;
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_graph::{ColdRows, LoadedFeature, StoredFeature};
use feedline_proto::services::MAX_GATHERED_ROWS;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;

use super::job_peers::{JobPeers, PeerRequest};
use crate::engine::{GatherableFeature, MemoryBudget, MemoryReservation};
use crate::metrics;

/// Number of slices that one request reads from the graph at the same time.
const CONCURRENT_SLICES: usize = 4;
/// Number of requests for rows that are sent to other workers at the same time.
const CONCURRENT_REQUESTS: usize = 8;
/// Maximum size of the rows of a request, unless one row is larger. A small worker can send several such responses at a time.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// A load of a slice that several requests await.
type SliceLoad = Shared<BoxFuture<'static, Result<Arc<SliceRows>, String>>>;

/// The memory for slices.
#[derive(Debug, Clone)]
pub(super) struct SliceMemory {
    pub(super) budget: Arc<MemoryBudget>,
    /// The memory of all graphs together. A slice that does not fit is read for each request.
    pub(super) limit_bytes: u64,
}

/// A feature of which this worker holds some slices.
pub(super) struct PartitionedFeature {
    stored: StoredFeature,
    content: GraphHash,
    worker: WorkerId,
    peers: Arc<JobPeers>,
    memory: SliceMemory,
    /// The form of the rows, without rows.
    form: LoadedFeature,
    state: Mutex<HeldSlices>,
}

struct HeldSlices {
    placement: Arc<FeaturePlacement>,
    /// The workers of the placement.
    workers: Vec<WorkerId>,
    /// The slices of this worker that are in memory or being read.
    slices: BTreeMap<u32, SliceLoad>,
}

/// The rows of a slice.
struct SliceRows {
    rows: Vec<u8>,
    _reservation: MemoryReservation,
}

impl fmt::Debug for PartitionedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.stored.feature().name;
        f.debug_struct("PartitionedFeature").field("feature", name).finish_non_exhaustive()
    }
}

impl PartitionedFeature {
    pub(super) fn new(
        stored: StoredFeature,
        worker: WorkerId,
        peers: Arc<JobPeers>,
        memory: SliceMemory,
    ) -> Arc<Self> {
        let content = stored.feature().content_hash();
        let placement = Arc::new(FeaturePlacement::new(content, stored.rows(), &[]));
        let state = HeldSlices { placement, workers: Vec::new(), slices: BTreeMap::new() };
        let form = LoadedFeature::without_rows(stored.feature());
        Arc::new(Self { stored, content, worker, peers, memory, form, state: Mutex::new(state) })
    }

    /// The content hash of the feature.
    pub(super) fn content(&self) -> GraphHash {
        self.content
    }

    /// The form of the rows, which copies rows to batches.
    pub(super) fn form(&self) -> &LoadedFeature {
        &self.form
    }

    /// Returns rows for batches. Their indexes ascend without duplicates.
    ///
    /// # Errors
    /// Returns a message if a row does not exist, or the graph cannot be read.
    pub(super) async fn read_rows(&self, indexes: Vec<u64>) -> Result<ColdRows, String> {
        let rows = indexes.iter().map(|index| u32::try_from(*index)).collect::<Result<Vec<u32>, _>>();
        let rows = rows.map_err(|_| "a node has an id of more than 32 bits; please report this")?;
        let bytes = self.rows(&rows).await?;
        Ok(ColdRows::from_bytes(indexes, &bytes))
    }

    /// Returns rows in the order of `rows`, which is ascending, without padding between them: slices of this worker from memory, and
    /// others from their workers, or else from the graph.
    ///
    /// # Errors
    /// Returns a message if the graph cannot be read.
    pub(super) async fn rows(&self, rows: &[u32]) -> Result<Vec<u8>, String> {
        self.check_rows(rows).map_err(|error| error.message)?;
        let placement = self.placement();
        let row_bytes = self.stored.row_bytes() as usize;
        let most_rows = (MAX_REQUEST_BYTES / row_bytes).clamp(1, MAX_GATHERED_ROWS);
        let mut parts: Vec<(Option<WorkerId>, Vec<usize>)> = Vec::new();
        let mut others = vec![true; rows.len()];
        for (worker, indexes) in placement.divide(rows) {
            indexes.iter().for_each(|index| others[*index] = false);
            parts.extend(indexes.chunks(most_rows).map(|part| (Some(worker), part.to_vec())));
        }
        let others: Vec<usize> = (0..rows.len()).filter(|index| others[*index]).collect();
        if !others.is_empty() {
            parts.push((None, others));
        }
        let mut data = vec![0; rows.len() * row_bytes];
        let reads = parts.into_iter().map(|(owner, indexes)| async move {
            let part = indexes.iter().map(|index| rows[*index]).collect();
            let bytes = self.rows_from(owner, part).await?;
            Ok::<_, String>((indexes, bytes))
        });
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_REQUESTS);
        while let Some((indexes, bytes)) = reads.try_next().await? {
            for (index, row) in indexes.into_iter().zip(bytes.chunks_exact(row_bytes)) {
                data[index * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        Ok(data)
    }

    /// Returns rows from the worker that holds them, or else from the graph. Each owner returns the same bytes.
    async fn rows_from(&self, owner: Option<WorkerId>, rows: Vec<u32>) -> Result<Vec<u8>, String> {
        let held = match owner {
            Some(worker) if worker == self.worker => self.held_rows(rows.clone()).await.ok(),
            Some(worker) => {
                let row_bytes = self.stored.row_bytes();
                let request = PeerRequest { feature: self.content, row_bytes, rows: &rows };
                self.peers.gather(worker, request).await.map(Vec::from)
            }
            None => None,
        };
        if let Some(held) = held {
            return Ok(held);
        }
        if owner.is_some() {
            metrics::count_gather_missed(rows.len() as u64);
        }
        self.stored.read_rows(&rows).await.map_err(|error| error.to_string())
    }

    /// Returns the placement on the present workers of the job. Releases slices that this worker no longer holds.
    fn placement(&self) -> Arc<FeaturePlacement> {
        let workers = self.peers.workers();
        let mut state = self.lock();
        if state.workers != workers {
            let placement = Arc::new(FeaturePlacement::new(self.content, self.stored.rows(), &workers));
            let worker = self.worker;
            state.slices.retain(|slice, _| placement.owner_of(*slice) == Some(worker));
            state.placement = placement;
            state.workers = workers;
        }
        Arc::clone(&state.placement)
    }

    /// Returns a slice of this worker.
    async fn slice(&self, placement: &FeaturePlacement, slice: u32) -> Result<Arc<SliceRows>, String> {
        let load = self.load(placement, slice);
        let loaded = load.clone().await;
        let is_kept =
            loaded.is_ok() && self.memory.budget.used_bytes(MemoryAccount::Graphs) <= self.memory.limit_bytes;
        if !is_kept {
            let mut state = self.lock();
            if state.slices.get(&slice).is_some_and(|other| other.ptr_eq(&load)) {
                state.slices.remove(&slice);
            }
        }
        loaded
    }

    /// Returns the load of a slice. Begins it if necessary.
    fn load(&self, placement: &FeaturePlacement, slice: u32) -> SliceLoad {
        let mut state = self.lock();
        if let Some(load) = state.slices.get(&slice) {
            return load.clone();
        }
        let (stored, budget) = (self.stored.clone(), Arc::clone(&self.memory.budget));
        let rows: Vec<u32> = placement.rows_of(slice).collect();
        let load = async move {
            let bytes = rows.len() as u64 * u64::from(stored.row_bytes());
            let reservation = budget.reserve(MemoryAccount::Graphs, bytes);
            let rows = stored.read_rows(&rows).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(Arc::new(SliceRows { rows, _reservation: reservation }))
        };
        let load = load.boxed().shared();
        // The workers may have changed in the meantime.
        if state.placement.owner_of(slice) == Some(self.worker) {
            state.slices.insert(slice, load.clone());
        }
        load
    }

    fn check_rows(&self, rows: &[u32]) -> Result<(), ServiceError> {
        let Some(row) = rows.iter().find(|row| **row >= self.stored.rows()) else { return Ok(()) };
        let name = &self.stored.feature().name;
        let message = format!("the feature `{name}` has {} rows, and not row {row}", self.stored.rows());
        Err(ServiceError::new(ServiceErrorKind::Invalid, message))
    }

    fn lock(&self) -> MutexGuard<'_, HeldSlices> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl GatherableFeature for PartitionedFeature {
    fn row_bytes(&self) -> u32 {
        self.stored.row_bytes()
    }

    async fn held_rows(&self, rows: Vec<u32>) -> Result<Vec<u8>, ServiceError> {
        self.check_rows(&rows)?;
        let placement = self.placement();
        let is_elsewhere = |row: &&u32| placement.owner_of(placement.slice_of(**row)) != Some(self.worker);
        if let Some(row) = rows.iter().find(is_elsewhere) {
            let name = &self.stored.feature().name;
            let message = format!("this worker does not hold row {row} of the feature `{name}`");
            return Err(ServiceError::new(ServiceErrorKind::NotFound, message));
        }
        let mut slices: Vec<u32> = rows.iter().map(|row| placement.slice_of(*row)).collect();
        slices.sort_unstable();
        slices.dedup();
        let placement = &placement;
        let loads = slices.into_iter().map(|slice| async move {
            let rows = self.slice(placement, slice).await?;
            Ok::<_, String>((slice, rows))
        });
        let loads = stream::iter(loads).buffer_unordered(CONCURRENT_SLICES);
        let loaded = loads.try_collect::<BTreeMap<u32, Arc<SliceRows>>>().await;
        let unavailable = |reason: String| ServiceError::new(ServiceErrorKind::Unavailable, reason);
        let slices = loaded.map_err(unavailable)?;
        let (placement, row_bytes) = (Arc::clone(placement), self.stored.row_bytes() as usize);
        // Copying many rows takes a while.
        let copied = spawn_blocking(move || copy_rows(&placement, &slices, row_bytes, &rows)).await;
        let copied = copied.map_err(|error| unavailable(error.to_string()))?;
        copied
            .ok_or_else(|| unavailable("a slice of the feature is incomplete; please report this".to_owned()))
    }
}

/// Copies rows from their slices. Returns `None` if a slice does not contain a row.
fn copy_rows(
    placement: &FeaturePlacement,
    slices: &BTreeMap<u32, Arc<SliceRows>>,
    row_bytes: usize,
    rows: &[u32],
) -> Option<Vec<u8>> {
    let mut data = Vec::with_capacity(rows.len() * row_bytes);
    for part in rows.chunk_by(|left, right| placement.slice_of(*left) == placement.slice_of(*right)) {
        let slice = placement.slice_of(*part.first()?);
        let (first, held) = (placement.rows_of(slice).start, slices.get(&slice)?);
        for row in part {
            let start = (*row - first) as usize * row_bytes;
            data.extend_from_slice(held.rows.get(start..start + row_bytes)?);
        }
    }
    Some(data)
}
