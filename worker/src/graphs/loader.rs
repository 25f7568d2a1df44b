//! Loads the graphs of jobs: compares the description at the URL with the index of the job, and obtains the parts from the table.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use feedline_data::graph::description::{ExpectedHitRate, GraphFeature};
use feedline_data::graph::{FeatureSummary, GraphSummary};
use feedline_data::ids::JobId;
use feedline_data::messages::{HeldGraph, JobDetails};
use feedline_data::pipeline::{GraphBatchPlan, GraphColumnContent};
use feedline_graph::{GraphAccess, GraphFolder};
use feedline_sources::Stores;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval_at};

use super::block_disk::BlockDisk;
use super::job_graph::JobGraph;
use super::job_partitions::JobPartitions;
use super::part::{LoadedPart, PartRequest, PartSource};
use super::part_table::{AcquiredParts, NoRoom, PartLoad, PartTable};
use super::partitioned_feature::{PartitionedFeature, SliceMemory};
use super::row_window::{RowMemory, WINDOW_BATCHES};
use crate::engine::{GraphLoader, LoadedGraph, MemoryBudget};
use crate::settings::GraphDiskSettings;

/// Interval at which consumers learn that the graph of their job is still being loaded. Without progress, they would request the split
/// from other workers, which would load the graph too.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// What the graphs of a worker require of its engine.
pub(crate) trait GraphHost: Send + Sync {
    /// Removes the jobs that have no leases, so that their graphs can be evicted. A worker keeps some jobs after their end.
    fn remove_idle_jobs(&self);

    /// Records that the leases of a job make progress, because its graph is being loaded.
    fn on_loading(&self, job: JobId);

    /// Starts groups that did not fit in the memory before a graph was evicted.
    fn on_evicted(&self);
}

/// The memory and the disk for the graphs of a worker.
#[derive(Debug, Clone)]
pub(crate) struct GraphLimits {
    /// The memory of all graphs together, which is part of the budget.
    pub(crate) memory_bytes: u64,
    /// The directory for topologies, and for blocks of features in stores, that do not fit in memory.
    pub(crate) disk: Option<GraphDiskSettings>,
    /// Maximum number of batches whose rows are read together.
    pub(crate) window_batches: usize,
}

impl GraphLimits {
    /// Limits without a directory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Self { memory_bytes, disk: None, window_batches: WINDOW_BATCHES }
    }
}

/// The graphs of one worker.
pub(crate) struct WorkerGraphs {
    table: Arc<PartTable>,
    /// The memory of rows that are read for batches.
    row_memory: RowMemory,
    window_batches: usize,
    has_disk: bool,
    host: Box<dyn GraphHost>,
    /// Notified when the engine needs the memory of unused parts.
    memory_needed: Notify,
    budget: Arc<MemoryBudget>,
    limit_bytes: u64,
    /// The jobs that partition features. Set once, before the first job.
    partitions: OnceLock<Arc<JobPartitions>>,
}

impl fmt::Debug for WorkerGraphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGraphs").field("table", &self.table).finish_non_exhaustive()
    }
}

impl WorkerGraphs {
    /// Creates an empty table.
    pub(crate) fn new(
        budget: Arc<MemoryBudget>,
        limits: GraphLimits,
        host: impl GraphHost + 'static,
    ) -> Arc<Self> {
        let row_memory = RowMemory::new(Arc::clone(&budget), budget.limits().graph_row_bytes());
        let has_disk = limits.disk.is_some();
        let (disk, limit_bytes) = (limits.disk.map(BlockDisk::new), limits.memory_bytes);
        let table = PartTable::new(Arc::clone(&budget), limit_bytes, disk);
        Arc::new(Self {
            table,
            row_memory,
            window_batches: limits.window_batches,
            has_disk,
            host: Box::new(host),
            memory_needed: Notify::new(),
            budget,
            limit_bytes,
            partitions: OnceLock::new(),
        })
    }

    /// Sets the jobs that partition features. Only the first call has an effect.
    pub(crate) fn set_partitions(&self, partitions: Arc<JobPartitions>) {
        let _ = self.partitions.set(partitions);
    }

    /// Creates the partitioned features of a job.
    fn partition(
        &self,
        job: JobId,
        folder: &Arc<GraphFolder>,
        features: Vec<(PartSource, PartRequest)>,
    ) -> Result<Vec<(PartSource, Arc<PartitionedFeature>)>, String> {
        let Some(partitions) = self.partitions.get() else {
            return Err("this worker does not partition features; please report this".to_owned());
        };
        let memory = SliceMemory { budget: Arc::clone(&self.budget), limit_bytes: self.limit_bytes };
        partitions.features_of(job, folder, features, &memory)
    }

    /// Evicts the least recently used part whenever the engine needs memory. Runs until the future is dropped.
    pub(crate) async fn evict_on_demand(self: Arc<Self>) {
        loop {
            self.memory_needed.notified().await;
            let table = Arc::clone(&self.table);
            // Returning the memory of a large part to the system takes a while.
            let evicted = spawn_blocking(move || table.evict_unused().map(drop).is_some()).await;
            if evicted.unwrap_or(false) {
                self.host.on_evicted();
            }
        }
    }

    /// Obtains the parts of a graph. Removes idle jobs if the parts that they use leave too little memory.
    fn acquire(&self, folder: &Arc<GraphFolder>, requests: &[PartRequest]) -> Result<AcquiredParts, NoRoom> {
        if !self.table.has_room(requests) {
            self.host.remove_idle_jobs();
        }
        match self.table.acquire(folder, requests) {
            Err(NoRoom::InUse { .. }) => {
                self.host.remove_idle_jobs();
                self.table.acquire(folder, requests)
            }
            acquired => acquired,
        }
    }

    /// Awaits the parts of a job in order. A read that makes no progress fails by itself.
    async fn await_parts(&self, job: JobId, loads: Vec<PartLoad>) -> Result<Vec<LoadedPart>, String> {
        let all = async {
            let mut parts = Vec::with_capacity(loads.len());
            for load in loads {
                parts.push(load.await?);
            }
            Ok::<_, String>(parts)
        };
        tokio::pin!(all);
        // Consumers learn about each load. The first tick of an interval may be later than the end of a short load.
        self.host.on_loading(job);
        let mut ticks = interval_at(Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.host.on_loading(job),
                parts = &mut all => return parts,
            }
        }
    }
}

#[async_trait]
impl GraphLoader for WorkerGraphs {
    async fn load(
        &self,
        details: &JobDetails,
        plan: &GraphBatchPlan,
        stores: &Arc<Stores>,
    ) -> Result<Arc<dyn LoadedGraph>, String> {
        let (Some(url), Some(summary)) = (details.pipeline.graph_url(), &details.dataset.graph) else {
            return Err("the pipeline samples no graph; please report this".to_owned());
        };
        let access = GraphAccess {
            stores: Arc::clone(stores),
            credentials: details.pipeline.graph_credentials().map(str::to_owned),
            tenant: details.reads.clone(),
        };
        let folder = Arc::new(GraphFolder::open(access, url).await.map_err(|error| error.to_string())?);
        let can_be_cold = folder.is_local() || self.has_disk;
        let mut needed = NeededParts::new(&folder, summary, plan, can_be_cold)?;
        let partitioned = match details.pipeline.partitions_features() {
            true => self.partition(details.job, &folder, needed.take_node_features())?,
            false => Vec::new(),
        };
        let acquired =
            self.acquire(&folder, &needed.requests).map_err(|error| no_room(url, error, self.has_disk))?;
        let AcquiredParts { loads, evicted } = acquired;
        if !evicted.is_empty() {
            spawn_blocking(move || drop(evicted)).await.map_err(|error| error.to_string())?;
        }
        // The use begins before the loads end, so that the parts of a job whose load fails are found when memory is needed.
        let part_use = self.table.start_use(&needed.requests);
        let parts = self.await_parts(details.job, loads).await?;
        let parts = needed.places.into_iter().zip(parts);
        let (memory, window_batches) = (self.row_memory.clone(), self.window_batches);
        Ok(Arc::new(JobGraph::new(parts, partitioned, part_use, memory, window_batches)?))
    }

    fn release_unused(&self) {
        if self.table.has_unused() {
            self.memory_needed.notify_one();
        }
    }

    fn held(&self) -> Vec<HeldGraph> {
        self.table.held()
    }
}

/// The parts that a job needs.
struct NeededParts {
    requests: Vec<PartRequest>,
    /// The place of each part in the summary of the job.
    places: Vec<PartSource>,
}

impl NeededParts {
    /// Finds the parts in the description of a graph. `can_be_cold` says whether rows that are not in memory can be read.
    ///
    /// # Errors
    /// Returns a message if the graph differs from the summary, because it was built again.
    fn new(
        folder: &GraphFolder,
        summary: &GraphSummary,
        plan: &GraphBatchPlan,
        can_be_cold: bool,
    ) -> Result<Self, String> {
        let description = folder.description();
        let fingerprint = description.topology_fingerprint();
        if fingerprint != summary.topology {
            return Err(built_again(folder, "another topology"));
        }
        let mut needed = Self {
            requests: vec![PartRequest::topology(folder, fingerprint)],
            places: vec![PartSource::Topology],
        };
        for place in feature_places(plan) {
            let (request, name) = match place {
                PartSource::Topology => continue,
                PartSource::NodeFeature { node_type, feature } => {
                    let summary = summary.nodes.get(node_type).and_then(|nodes| nodes.features.get(feature));
                    let nodes = description.nodes.get(node_type);
                    let features = nodes.map(|nodes| nodes.features.as_slice());
                    let source = |feature| PartSource::NodeFeature { node_type, feature };
                    let curves = description.vip.as_ref().map(|order| order.curves.as_slice());
                    let curve = curves.and_then(|curves| curves.get(node_type)).map(Vec::as_slice);
                    let rows = (nodes.map_or(0, |nodes| u64::from(nodes.count)), curve.unwrap_or_default());
                    feature_request(features, summary, source, rows, can_be_cold)?
                }
                PartSource::EdgeFeature { relation, feature } => {
                    let summary =
                        summary.relations.get(relation).and_then(|edges| edges.features.get(feature));
                    let edges = description.relations.get(relation);
                    let features = edges.map(|edges| edges.features.as_slice());
                    let source = |feature| PartSource::EdgeFeature { relation, feature };
                    let rows = (edges.map_or(0, |edges| edges.edges), <&[ExpectedHitRate]>::default());
                    feature_request(features, summary, source, rows, can_be_cold)?
                }
            };
            let Some(request) = request else {
                return Err(built_again(folder, &format!("another feature `{name}`")));
            };
            needed.requests.push(request);
            needed.places.push(place);
        }
        Ok(needed)
    }
}

impl NeededParts {
    /// Removes the features of nodes. Returns their places with their requests.
    fn take_node_features(&mut self) -> Vec<(PartSource, PartRequest)> {
        let all = self.places.drain(..).zip(self.requests.drain(..));
        let (features, others): (Vec<_>, Vec<_>) =
            all.partition(|(place, _)| matches!(place, PartSource::NodeFeature { .. }));
        (self.places, self.requests) = others.into_iter().unzip();
        features
    }
}

/// Returns the request for a feature of the summary, and its name. The request is `None` if the graph has other rows.
fn feature_request<'a>(
    features: Option<&[GraphFeature]>,
    summary: Option<&'a FeatureSummary>,
    source: impl Fn(usize) -> PartSource,
    rows: (u64, &[ExpectedHitRate]),
    can_be_cold: bool,
) -> Result<(Option<PartRequest>, &'a str), String> {
    let (Some(features), Some(summary)) = (features, summary) else {
        return Err("a column refers to an unknown feature; please report this".to_owned());
    };
    let stored = features.iter().enumerate().find(|(_, feature)| feature.name == summary.name);
    let same = stored.filter(|(_, feature)| feature.content_hash() == summary.content);
    let request =
        same.map(|(index, feature)| PartRequest::feature(feature, source(index), rows, can_be_cold));
    Ok((request, summary.name.as_str()))
}

/// Returns the features that the columns of batches contain, as indexes in the summary. Each feature has one column.
fn feature_places(plan: &GraphBatchPlan) -> impl Iterator<Item = PartSource> {
    plan.columns.iter().filter_map(|column| match column.content {
        GraphColumnContent::NodeFeature { node_type, feature } => {
            Some(PartSource::NodeFeature { node_type, feature })
        }
        GraphColumnContent::EdgeFeature { relation, feature } => {
            Some(PartSource::EdgeFeature { relation, feature })
        }
        _ => None,
    })
}

fn built_again(folder: &GraphFolder, difference: &str) -> String {
    format!(
        "the graph `{}` was built again after the job was created, and has {difference}: start a new job, or restore the former graph",
        folder.url()
    )
}

/// `has_disk` says whether the worker has a directory for graphs.
fn no_room(url: &str, error: NoRoom, has_disk: bool) -> String {
    let other = if has_disk { "" } else { " or with --graph-dir" };
    match error {
        NoRoom::TooLarge { needed, limit } => format!(
            "the graph `{url}` needs at least {needed} bytes of memory, but --graph-memory allows {limit} bytes: start workers with a \
             larger --graph-memory{other}"
        ),
        NoRoom::InUse { needed, used, limit } => format!(
            "the graph `{url}` needs at least {needed} bytes of memory, but the graphs of other jobs use {used} of the {limit} bytes that \
             --graph-memory allows: start workers with a larger --graph-memory{other}, or start the job later"
        ),
    }
}
