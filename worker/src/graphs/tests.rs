//! Loads of graphs on a local disk: sharing, cancellation, eviction, limits, and graphs that are built again.

mod cold;
mod partitions;
mod scratch;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use feedline_data::graph::description::GraphHash;
use feedline_data::ids::JobId;
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::HeldGraph;
use feedline_data::schema::ScalarType;
use feedline_graph::GraphFolder;
use futures::FutureExt;
use tokio::sync::Notify;

use self::scratch::{GraphScratch, TestGraph};
use super::part::{PartKey, PartRequest, PartSource};
use super::part_table::{AcquiredParts, NoRoom, PartTable};
use super::{GraphHost, GraphLimits, WorkerGraphs};
use crate::engine::{GraphLoader, LoadedGraph, MemoryBudget};

const MIB: u64 = 1 << 20;

fn new_budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(64 * MIB))
}

fn used(budget: &MemoryBudget) -> u64 {
    budget.used_bytes(MemoryAccount::Graphs)
}

/// An engine that counts calls, and holds a graph of a job without leases.
#[derive(Clone, Default)]
struct TestHost {
    idle: Arc<Mutex<Option<Arc<dyn LoadedGraph>>>>,
    loading: Arc<AtomicU32>,
    evicted: Arc<Notify>,
}

impl GraphHost for TestHost {
    fn remove_idle_jobs(&self) {
        drop(self.idle.lock().unwrap().take());
    }

    fn on_loading(&self, job: JobId) {
        assert_eq!(job, JobId(1));
        self.loading.fetch_add(1, Ordering::Relaxed);
    }

    fn on_evicted(&self) {
        self.evicted.notify_one();
    }
}

/// A table of graphs without jobs to remove.
fn graphs(budget: &Arc<MemoryBudget>, limit_bytes: u64) -> Arc<WorkerGraphs> {
    WorkerGraphs::new(Arc::clone(budget), GraphLimits::new(limit_bytes), TestHost::default())
}

async fn load(graphs: &WorkerGraphs, job: &TestGraph) -> Result<Arc<dyn LoadedGraph>, String> {
    graphs.load(&job.details, &job.plan, &job.stores).await
}

/// The first numbers of the rows of two nodes.
fn first_numbers(graph: &dyn LoadedGraph) -> [f32; 2] {
    let mut rows = [0; 2 * 16];
    graph.copy_node_rows(0, 0, ScalarType::Float32, &[7, 0], None, &mut rows).unwrap();
    [&rows[..4], &rows[16..20]].map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
}

/// The fingerprints of graphs.
fn loaded(held: &[HeldGraph]) -> Vec<GraphHash> {
    held.iter().map(|graph| graph.topology).collect()
}

fn fingerprint(job: &TestGraph) -> GraphHash {
    job.details.dataset.graph.as_ref().unwrap().topology
}

#[tokio::test]
async fn two_jobs_share_the_parts_of_a_graph() {
    let scratch = GraphScratch::new();
    scratch.build("g", 100, 0.0);
    let (structure, with_features) = (scratch.job("g", "").await, scratch.job("g", "x").await);
    let budget = new_budget();
    let graphs = graphs(&budget, 32 * MIB);
    let (one, two) = tokio::join!(load(&graphs, &structure), load(&graphs, &with_features));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(used(&budget), with_features.bytes);
    assert!(structure.bytes < with_features.bytes);
    assert_eq!(one.relation_views()[0].sources.as_ptr(), two.relation_views()[0].sources.as_ptr());
    assert_eq!(one.node_counts(), [100]);
    assert_eq!(first_numbers(two.as_ref()), [28.0, 0.0]);
    let error = one.copy_node_rows(0, 0, ScalarType::Float32, &[7], None, &mut [0; 16]).unwrap_err();
    assert_eq!(error, "the job has not loaded this feature; please report this");
    assert_eq!(loaded(&graphs.held()), [fingerprint(&structure)]);
    drop((one, two));
    assert_eq!(used(&budget), with_features.bytes, "an idle graph stays in memory");
}

#[test]
fn a_load_is_shared_until_all_of_its_jobs_are_gone() {
    // The only thread for blocking calls is busy until `release` is dropped, so that no load ends before that.
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let scratch = GraphScratch::new();
        scratch.build("g", 100, 0.0);
        let job = scratch.job("g", "").await;
        let folder = Arc::new(scratch.open("g").await);
        let (budget, requests) = (new_budget(), [PartRequest::topology(&folder, fingerprint(&job))]);
        let table = PartTable::new(Arc::clone(&budget), 32 * MIB, None);
        let acquire = || table.acquire(&folder, &requests).unwrap().loads.remove(0);
        let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
        tokio::task::spawn_blocking(move || released.recv());

        let mut only = acquire();
        assert!((&mut only).now_or_never().is_none());
        assert_eq!(used(&budget), 2 * job.bytes, "the memory is reserved while the load begins");
        drop(only);
        assert_eq!(used(&budget), 0, "a load without jobs is cancelled");
        assert!(loaded(&table.held()).is_empty());

        let (mut first, second) = (acquire(), acquire());
        assert!(first.ptr_eq(&second), "the load is not repeated");
        assert!((&mut first).now_or_never().is_none());
        drop(first);
        assert_eq!(used(&budget), 2 * job.bytes, "the other job still waits for the load");
        drop(release);
        let part = second.await.unwrap();
        assert_eq!(used(&budget), job.bytes);
        assert_eq!(loaded(&table.held()), [fingerprint(&job)]);
        drop(part);
    });
}

#[tokio::test]
async fn a_failed_load_is_repeated() {
    let scratch = GraphScratch::new();
    scratch.build("g", 100, 0.0);
    let job = scratch.job("g", "x").await;
    let budget = new_budget();
    let graphs = graphs(&budget, 32 * MIB);
    let path = scratch.path("g").join("nodes/node.x.npy");
    let intact = std::fs::read(&path).unwrap();
    let mut damaged = intact.clone();
    damaged[200] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let (one, two) = tokio::join!(load(&graphs, &job), load(&graphs, &job));
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(error.contains("node.x.npy` at byte 128: the 1600 bytes from here have the hash"), "{error}");
    }
    assert!(used(&budget) < job.bytes, "only the topology is in memory");
    std::fs::write(&path, intact).unwrap();
    assert_eq!(first_numbers(load(&graphs, &job).await.unwrap().as_ref()), [28.0, 0.0]);
}

#[tokio::test]
async fn a_graph_that_is_built_again_does_not_change_a_running_job() {
    let scratch = GraphScratch::new();
    scratch.build("g", 100, 0.0);
    let before = scratch.job("g", "x").await;
    let budget = new_budget();
    let graphs = graphs(&budget, 32 * MIB);
    let running = load(&graphs, &before).await.unwrap();
    scratch.build("g", 100, 1000.0);
    let error = load(&graphs, &before).await.unwrap_err();
    assert!(
        error.contains(
            "was built again after the job was created, and has another feature `x`: start a new job"
        ),
        "{error}"
    );
    let after = scratch.job("g", "x").await;
    assert_eq!(fingerprint(&before), fingerprint(&after));
    let new = load(&graphs, &after).await.unwrap();
    assert_eq!(first_numbers(running.as_ref()), [28.0, 0.0]);
    assert_eq!(first_numbers(new.as_ref()), [1028.0, 1000.0]);
    assert_eq!(
        running.relation_views()[0].sources.as_ptr(),
        new.relation_views()[0].sources.as_ptr(),
        "the topology is the same"
    );
    scratch.build("g", 101, 0.0);
    let error = load(&graphs, &after).await.unwrap_err();
    assert!(error.contains("and has another topology: start a new job"), "{error}");
}

#[tokio::test]
async fn idle_graphs_are_evicted_in_the_order_of_their_last_use() {
    let scratch = GraphScratch::new();
    let mut jobs = Vec::new();
    for (name, nodes) in [("a", 100), ("b", 101), ("c", 102)] {
        scratch.build(name, nodes, 0.0);
        jobs.push(scratch.job(name, "x").await);
    }
    let budget = new_budget();
    let limit = jobs[1].bytes + jobs[2].bytes;
    let graphs = graphs(&budget, limit);
    for job in [&jobs[0], &jobs[1], &jobs[0]] {
        load(&graphs, job).await.unwrap();
    }
    assert_eq!(used(&budget), jobs[0].bytes + jobs[1].bytes, "both fit");
    let held = load(&graphs, &jobs[2]).await.unwrap();
    let mut loaded = loaded(&graphs.held());
    loaded.sort_unstable();
    let mut expected = [fingerprint(&jobs[0]), fingerprint(&jobs[2])];
    expected.sort_unstable();
    assert_eq!(loaded, expected, "the second graph was used before the first");
    assert!(used(&budget) <= limit);
    drop(held);
}

#[tokio::test]
async fn a_graph_that_does_not_fit_is_rejected_in_one_sentence() {
    let scratch = GraphScratch::new();
    scratch.build("a", 100, 0.0);
    scratch.build("b", 101, 0.0);
    let (one, two) = (scratch.job("a", "x").await, scratch.job("b", "").await);
    let topology = scratch.job("a", "").await.bytes;
    let budget = new_budget();
    let error = load(&graphs(&budget, topology - 1), &one).await.unwrap_err();
    let url = scratch.path("a");
    let expected = format!(
        "the graph `{}` needs at least {topology} bytes of memory, but --graph-memory allows {} bytes: start workers with a larger \
         --graph-memory or with --graph-dir",
        url.display(),
        topology - 1
    );
    assert_eq!(error, expected);
    assert_eq!(used(&budget), 0, "nothing is loaded");

    let (host, limit) = (TestHost::default(), one.bytes + two.bytes - 1);
    let graphs = WorkerGraphs::new(Arc::clone(&budget), GraphLimits::new(limit), host.clone());
    let held = load(&graphs, &one).await.unwrap();
    let error = load(&graphs, &two).await.unwrap_err();
    let part =
        format!("but the graphs of other jobs use {} of the {limit} bytes that --graph-memory", one.bytes);
    assert!(error.contains(&part), "{error}");
    *host.idle.lock().unwrap() = Some(held);
    let two_loaded = load(&graphs, &two).await.expect("the job without leases is removed");
    assert_eq!(two_loaded.node_counts(), [101]);
    assert!(used(&budget) <= limit);
}

#[tokio::test]
async fn unused_graphs_are_evicted_when_the_engine_needs_memory() {
    let scratch = GraphScratch::new();
    scratch.build("g", 100, 0.0);
    let job = scratch.job("g", "x").await;
    let budget = new_budget();
    let host = TestHost::default();
    let graphs = WorkerGraphs::new(Arc::clone(&budget), GraphLimits::new(32 * MIB), host.clone());
    let task = tokio::spawn(Arc::clone(&graphs).evict_on_demand());
    let held = load(&graphs, &job).await.unwrap();
    assert!(host.loading.load(Ordering::Relaxed) > 0, "consumers learn that the graph is being loaded");
    graphs.release_unused();
    tokio::task::yield_now().await;
    assert_eq!(used(&budget), job.bytes, "a job uses the graph");
    drop(held);
    while used(&budget) > 0 {
        graphs.release_unused();
        host.evicted.notified().await;
    }
    assert!(loaded(&graphs.held()).is_empty());
    task.abort();
}

#[tokio::test]
async fn parts_in_use_are_not_evicted_for_a_job_that_cannot_fit() {
    let scratch = GraphScratch::new();
    scratch.build("a", 100, 0.0);
    scratch.build("b", 101, 0.0);
    let (one, two) = (scratch.job("a", "").await, scratch.job("b", "").await);
    let (folder, other) = (Arc::new(scratch.open("a").await), Arc::new(scratch.open("b").await));
    let (budget, limit) = (new_budget(), one.bytes + two.bytes);
    let table = PartTable::new(budget, limit, None);
    let request = |key: u128, bytes| PartRequest {
        key: PartKey::Topology(GraphHash(key)),
        bytes,
        source: PartSource::Topology,
        rows: None,
    };
    let topology = |folder: &GraphFolder, job: &TestGraph| [PartRequest::topology(folder, fingerprint(job))];
    let AcquiredParts { mut loads, .. } = table.acquire(&folder, &topology(&folder, &one)).unwrap();
    let in_use = loads.remove(0).await.unwrap();
    table.acquire(&other, &topology(&other, &two)).unwrap().loads.remove(0).await.unwrap();
    let error = table.acquire(&folder, &[request(1, limit)]).unwrap_err();
    assert_eq!(error, NoRoom::InUse { needed: limit, used: one.bytes, limit });
    assert_eq!(loaded(&table.held()).len(), 2, "nothing is evicted without effect");
    let error = table.acquire(&folder, &[request(1, limit), request(2, 1)]).unwrap_err();
    assert_eq!(error, NoRoom::TooLarge { needed: limit + 1, limit });
    let fitting = table.acquire(&folder, &[request(1, two.bytes), request(1, two.bytes)]).unwrap();
    assert_eq!((fitting.loads.len(), fitting.evicted.len()), (2, 1), "equal parts count once");
    assert!(fitting.loads[0].ptr_eq(&fitting.loads[1]));
    assert_eq!(loaded(&table.held()), [fingerprint(&one)]);
    drop(in_use);
}
