//! Features that two or three workers hold together.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::ids::WorkerId;
use feedline_data::messages::{PartitionedJob, ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_graph::StoredFeature;
use feedline_proto::services::{FetchRequest, Frame};
use feedline_proto::{GatherRequest, WorkerService};
use futures::stream::BoxStream;

use super::*;
use crate::engine::{FeatureRef, GatherableFeature};
use crate::graphs::JobPartitions;
use crate::graphs::job_peers::{JobPeers, PeerWorkers};
use crate::graphs::partitioned_feature::{PartitionedFeature, SliceMemory};

const NODES: u32 = 100;
const ROW_BYTES: u64 = 16;

/// A worker that serves the rows of one feature.
struct FakePeer {
    feature: Arc<PartitionedFeature>,
    requests: AtomicU32,
    is_killed: AtomicBool,
}

#[async_trait]
impl WorkerService for FakePeer {
    async fn fetch(
        &self,
        _: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        Err(ServiceError::new(ServiceErrorKind::Invalid, "the test fetches no splits"))
    }

    async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        assert_eq!((request.job, request.ticket.as_str()), (JobId(1), "t"));
        assert_eq!(request.feature, self.feature.content());
        assert!(request.rows.is_sorted());
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.is_killed.load(Ordering::Relaxed) {
            return Err(ServiceError::unreachable("the worker was killed"));
        }
        self.feature.held_rows(request.rows).await.map(Bytes::from)
    }
}

/// The workers by address.
#[derive(Default)]
struct FakeDirectory(Mutex<BTreeMap<String, Arc<FakePeer>>>);

impl PeerWorkers for FakeDirectory {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let workers = self.0.lock().unwrap();
        let worker = workers.get(&address.url).ok_or_else(|| ServiceError::unreachable("no such worker"))?;
        Ok(Arc::clone(worker) as Arc<dyn WorkerService>)
    }
}

/// Workers of a job, and the feature `x` of its graph.
struct TestPartition {
    scratch: GraphScratch,
    directory: Arc<FakeDirectory>,
    peers: Vec<Arc<JobPeers>>,
    budgets: Vec<Arc<MemoryBudget>>,
}

impl TestPartition {
    fn new() -> Self {
        let scratch = GraphScratch::new();
        scratch.build("g", NODES, 0.0);
        Self { scratch, directory: Arc::default(), peers: Vec::new(), budgets: Vec::new() }
    }

    /// Adds a worker whose graphs may use this memory.
    async fn add(&mut self, limit_bytes: u64) -> Arc<FakePeer> {
        let folder = Arc::new(self.scratch.open("g").await);
        let feature = folder.description().nodes[0].features[0].clone();
        let stored = StoredFeature::new(folder, feature, NODES).unwrap();
        let found = Arc::new(OnceLock::new());
        assert!(found.set(Arc::clone(&self.directory) as Arc<dyn PeerWorkers>).is_ok());
        let (peers, budget) = (JobPeers::new(JobId(1), found), new_budget());
        let memory = SliceMemory { budget: Arc::clone(&budget), limit_bytes };
        let worker = WorkerId(self.peers.len() as u64 + 1);
        let feature = PartitionedFeature::new(stored, worker, Arc::clone(&peers), memory);
        let peer = FakePeer { feature, requests: AtomicU32::new(0), is_killed: AtomicBool::new(false) };
        let peer = Arc::new(peer);
        self.directory.0.lock().unwrap().insert(worker.to_string(), Arc::clone(&peer));
        self.peers.push(peers);
        self.budgets.push(budget);
        peer
    }

    /// Sends the list of the workers of the job to all workers.
    fn plan(&self, workers: &[u64]) {
        for peers in &self.peers {
            let address =
                |worker: &u64| (WorkerId(*worker), WorkerAddress::new(WorkerId(*worker).to_string()));
            peers.set(workers.iter().map(address).collect(), "t".to_owned());
        }
    }

    fn held(&self) -> Vec<u64> {
        self.budgets.iter().map(|budget| used(budget)).collect()
    }
}

fn expected(rows: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let numbers = rows.into_iter().flat_map(|row| (0..4).map(move |place| (row * 4 + place) as f32));
    numbers.flat_map(f32::to_le_bytes).collect()
}

#[tokio::test]
async fn each_worker_holds_its_slices_and_requests_the_others() {
    let mut test = TestPartition::new();
    let (one, two) = (test.add(MIB).await, test.add(MIB).await);
    let all: Vec<u32> = (0..NODES).collect();
    assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES), "before the first plan");
    assert_eq!(test.held(), [0, 0]);
    test.plan(&[1, 2]);
    for _ in 0..2 {
        assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES));
    }
    assert_eq!((one.requests.load(Ordering::Relaxed), two.requests.load(Ordering::Relaxed)), (0, 2));
    let held = test.held();
    assert!(held.iter().all(|bytes| *bytes > 0), "{held:?}");
    assert_eq!(held.iter().sum::<u64>(), u64::from(NODES) * ROW_BYTES, "each row is held once");
    assert_eq!(two.feature.rows(&[3, 7, 99]).await.unwrap(), expected([3, 7, 99]));
    assert_eq!(one.feature.rows(&[]).await.unwrap(), Vec::<u8>::new());
}

#[tokio::test]
async fn a_killed_owner_changes_no_byte() {
    let mut test = TestPartition::new();
    let (one, two) = (test.add(MIB).await, test.add(MIB).await);
    test.plan(&[1, 2]);
    let all: Vec<u32> = (0..NODES).collect();
    two.is_killed.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES));
    }
    assert_eq!(
        two.requests.load(Ordering::Relaxed),
        1,
        "a worker that has failed is not asked again at once"
    );
    test.plan(&[1]);
    assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES));
    assert_eq!(test.held()[0], u64::from(NODES) * ROW_BYTES, "the rest of the workers hold all rows");
}

#[tokio::test]
async fn a_worker_that_joins_changes_no_byte() {
    let mut test = TestPartition::new();
    let (one, _two, three) = (test.add(MIB).await, test.add(MIB).await, test.add(MIB).await);
    let all: Vec<u32> = (0..NODES).collect();
    for workers in [&[1, 2][..], &[1, 2, 3], &[1, 3], &[3]] {
        test.plan(workers);
        assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES), "{workers:?}");
        assert_eq!(three.feature.rows(&all).await.unwrap(), expected(0..NODES), "{workers:?}");
    }
    let held = test.held();
    assert_eq!((held[0], held[2]), (0, u64::from(NODES) * ROW_BYTES), "slices of other workers are released");
}

#[tokio::test]
async fn slices_that_do_not_fit_are_not_kept() {
    let mut test = TestPartition::new();
    let one = test.add(ROW_BYTES - 1).await;
    test.plan(&[1]);
    let all: Vec<u32> = (0..NODES).collect();
    assert_eq!(one.feature.rows(&all).await.unwrap(), expected(0..NODES));
    assert_eq!(test.held(), [0]);
}

#[tokio::test]
async fn rows_of_others_and_rows_that_do_not_exist_are_rejected() {
    let mut test = TestPartition::new();
    let one = test.add(MIB).await;
    test.plan(&[2]);
    let error = one.feature.held_rows(vec![7]).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::NotFound);
    assert_eq!(error.message, "this worker does not hold row 7 of the feature `x`");
    let error = one.feature.held_rows(vec![0, NODES]).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
    assert_eq!(error.message, "the feature `x` has 100 rows, and not row 100");
    assert_eq!(
        one.feature.rows(&[NODES]).await.unwrap_err(),
        "the feature `x` has 100 rows, and not row 100"
    );
}

#[tokio::test]
async fn a_damaged_slice_is_one_sentence_for_its_reader_only() {
    let mut test = TestPartition::new();
    let one = test.add(MIB).await;
    test.plan(&[1]);
    let path = test.scratch.path("g").join("nodes/node.x.npy");
    let mut bytes = std::fs::read(&path).unwrap();
    let intact = bytes.clone();
    bytes[200] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = one.feature.rows(&[1, 2]).await.unwrap_err();
    assert!(error.contains("have the hash"), "{error}");
    let refusal = one.feature.held_rows(vec![1]).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Unavailable);
    std::fs::write(&path, intact).unwrap();
    assert_eq!(one.feature.rows(&[1, 2]).await.unwrap(), expected([1, 2]), "a failed read is repeated");
}

#[tokio::test]
async fn a_job_loads_its_topology_and_no_features_of_nodes() {
    let scratch = GraphScratch::new();
    scratch.build("g", NODES, 0.0);
    let (structure, job) =
        (scratch.job("g", "").await, scratch.job("g", "x], placement: partition, edge_features: [").await);
    let (budget, partitions) = (new_budget(), JobPartitions::new(WorkerId(1)));
    let graphs = graphs(&budget, 32 * MIB);
    graphs.set_partitions(Arc::clone(&partitions));
    let graph = load(&graphs, &job).await.unwrap();
    assert_eq!(used(&budget), structure.bytes, "only the topology is loaded");
    let content = job.details.dataset.graph.as_ref().unwrap().nodes[0].features[0].content;
    assert!(graph.gatherable(GraphHash(1)).is_none());
    let feature = graph.gatherable(content).unwrap();
    assert_eq!(feature.held_rows(vec![1]).await.unwrap_err().kind, ServiceErrorKind::NotFound, "no plan yet");
    let workers = vec![(WorkerId(1), WorkerAddress::new("http://a:1"))];
    partitions.apply(vec![PartitionedJob { job: JobId(1), workers, ticket: String::new() }]);
    assert_eq!(feature.held_rows(vec![9, 1]).await.unwrap(), expected([9, 1]));

    let stored = graph.stored_rows(0, 0, NODES).unwrap();
    assert_eq!(
        (stored.data.len(), stored.blocks.len()),
        (0, 1),
        "consumers do not cache rows of all workers"
    );

    let missing = graph.missing_node_rows(0, 0, &[7, 0, 7]);
    assert_eq!(missing, [0, 7]);
    let place = FeatureRef::Node { node_type: 0, feature: 0 };
    let fetched = graph.fetch(BTreeMap::from([(place, missing)])).await.unwrap();
    let mut rows = vec![0; 3 * 16];
    graph.copy_node_rows(0, 0, ScalarType::Float32, &[7, 0, 7], Some(&fetched), &mut rows).unwrap();
    assert_eq!(rows, expected([7, 0, 7]));
    let mut halves = vec![0; 8];
    graph.copy_node_rows(0, 0, ScalarType::Float16, &[0], Some(&fetched), &mut halves).unwrap();
    assert_eq!(halves, [0, 0, 0, 0x3c, 0, 0x40, 0, 0x42], "numbers are converted by the reader");
}
