//! Sampled graphs of a small graph in memory. The samples are compared with those of the sampler itself.

mod links;

use std::sync::atomic::AtomicU32;

use arrow::array::Array;
use arrow::datatypes::{Float32Type, UInt32Type};
use async_trait::async_trait;
use feedline_data::graph::description::GraphHash;
use feedline_data::graph::{
    BatchSeeds, FeatureSummary, GraphSummary, GraphView, NeighborSampler, NodeTypeSummary, RelationSummary,
    RelationView, SampledGraph, Seed, SeedRow,
};
use feedline_data::messages::HeldGraph;
use feedline_data::pipeline::GraphBatchPlan;
use feedline_data::schema::ScalarType;

use super::*;
use crate::engine::graph_job::GraphJob;
use crate::engine::loaded_graph::{FetchedRows, GraphLoader, LoadedGraph};

/// A graph in which node `n` has edges from the nodes `n + 1` to `n + 1 + n % 9`, with a feature of two numbers.
#[derive(Debug)]
struct MemoryGraph {
    node_counts: [u32; 1],
    offsets: Vec<u64>,
    sources: Vec<u32>,
}

impl MemoryGraph {
    fn new(nodes: u32) -> Self {
        let (mut offsets, mut sources) = (vec![0], Vec::new());
        for node in 0..nodes {
            let mut row: Vec<u32> = (1..=1 + node % 9).map(|step| (node + step) % nodes).collect();
            row.sort_unstable();
            sources.extend(row);
            offsets.push(sources.len() as u64);
        }
        Self { node_counts: [nodes], offsets, sources }
    }

    fn summary(&self, shape: u32) -> GraphSummary {
        let x = FeatureSummary {
            name: "x".to_owned(),
            dtype: ScalarType::Float32,
            shape: vec![shape],
            content: GraphHash(1),
        };
        let relation = RelationSummary {
            source: "n".to_owned(),
            name: "e".to_owned(),
            target: "n".to_owned(),
            edges: self.sources.len() as u64,
            undirected: false,
            has_weights: false,
            has_times: false,
            features: Vec::new(),
        };
        let nodes = NodeTypeSummary { name: "n".to_owned(), count: self.node_counts[0], features: vec![x] };
        GraphSummary {
            topology: GraphHash(1),
            nodes: vec![nodes],
            relations: vec![relation],
            seeds: Vec::new(),
        }
    }
}

impl LoadedGraph for MemoryGraph {
    fn node_counts(&self) -> &[u32] {
        &self.node_counts
    }

    fn relation_views(&self) -> Vec<RelationView<'_>> {
        vec![RelationView {
            source_type: 0,
            target_type: 0,
            offsets: &self.offsets,
            sources: &self.sources,
            weights: None,
            times: None,
        }]
    }

    fn positions(&self, _: usize) -> Option<&[u32]> {
        None
    }

    fn edge_ids(&self, _: usize) -> Option<&[u64]> {
        None
    }

    fn copy_node_rows(
        &self,
        _: usize,
        _: usize,
        dtype: ScalarType,
        ids: &[u32],
        _: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String> {
        assert_eq!(dtype, ScalarType::Float32);
        let row_bytes = out.len() / ids.len();
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(row_bytes)) {
            for (place, number) in (0..).zip(row.chunks_exact_mut(4)) {
                number.copy_from_slice(&feature_value(*id, place).to_le_bytes());
            }
        }
        Ok(())
    }

    fn copy_edge_rows(
        &self,
        _: usize,
        _: usize,
        _: ScalarType,
        _: &[u64],
        _: Option<&FetchedRows>,
        _: &mut [u8],
    ) -> Result<(), String> {
        Err("the edges have no features".to_owned())
    }
}

fn feature_value(id: u32, place: u32) -> f32 {
    (id * 2 + place) as f32
}

/// Loads one graph, and counts how often.
#[derive(Debug)]
struct MemoryLoader {
    graph: Arc<MemoryGraph>,
    loads: AtomicU32,
    /// The number of requests for the memory of unused graphs.
    releases: AtomicU32,
}

#[async_trait]
impl GraphLoader for MemoryLoader {
    async fn load(
        &self,
        details: &JobDetails,
        _: &GraphBatchPlan,
        _: &Arc<Stores>,
    ) -> Result<Arc<dyn LoadedGraph>, String> {
        assert_eq!(details.pipeline.graph_url(), Some("memory"));
        self.loads.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(&self.graph) as Arc<dyn LoadedGraph>)
    }

    fn release_unused(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    fn held(&self) -> Vec<HeldGraph> {
        Vec::new()
    }
}

/// An engine whose job samples a graph of `nodes` nodes for `rows` seeds, and its loader.
struct GraphTest {
    test: TestEngine,
    loader: Arc<MemoryLoader>,
}

/// `rest` are the keys of the pipeline before the operators, and `before` are operators. `shape` is the length of the feature.
async fn graph_test(
    (rows, nodes, shape): (usize, u32, u32),
    rest: &str,
    before: &str,
    (cores, memory_bytes): (u32, u64),
) -> GraphTest {
    let operators = format!(
        "operators: [ {before} rename: {{ columns: {{ node: id }} }}, \
         sample_neighbors: {{ size: 8, fanouts: [3, 2], features: [x], graph: memory }} ]\n"
    );
    let test = TestEngine::new(&lines(rows), &format!("{rest}{operators}"), 1, cores, memory_bytes).await;
    with_graph(test, nodes, shape)
}

/// Adds a graph to an engine whose job samples one.
fn with_graph(mut test: TestEngine, nodes: u32, shape: u32) -> GraphTest {
    let graph = Arc::new(MemoryGraph::new(nodes));
    let details = &mut test.source.details;
    details.dataset.graph = Some(Box::new(graph.summary(shape)));
    details.dataset.batch_bytes = details.pipeline.expected_batch_bytes(&details.dataset);
    assert!(details.dataset.batch_bytes.is_some(), "the pipeline fits the graph");
    details.layout = Layout::new(&details.pipeline, &details.dataset, 2, 1);
    test.layout = details.layout.clone();
    let loader = Arc::new(MemoryLoader { graph, loads: AtomicU32::new(0), releases: AtomicU32::new(0) });
    test.settings.graphs = Some(Arc::clone(&loader) as Arc<dyn GraphLoader>);
    GraphTest { test, loader }
}

impl GraphTest {
    async fn delivered(&self, epoch: u32) -> Vec<(SplitRef, Delivered)> {
        self.test.lease(self.test.splits(epoch));
        self.test.load().await;
        let mut delivered = Vec::new();
        for split in self.test.splits(epoch) {
            delivered.push((split, self.test.fetch(split, 0).await));
        }
        delivered
    }

    /// Compares a batch with the sample of its seeds. The id of a row is the id of its seed.
    fn check(&self, split: SplitRef, piece: &PieceHeader, batch: &RecordBatch) {
        assert!(
            piece.indivisible
                && self.test.layout.is_whole_batch(self.test.layout.split_len(split), piece.start, piece.end)
        );
        assert_eq!(batch.num_rows(), usize::from(piece.rows > 0));
        if piece.rows == 0 {
            return;
        }
        let job = self.test.engine.job(JOB).expect("the job is loaded");
        let kept = piece.kept_offsets.clone().unwrap_or_else(|| (piece.start..piece.end).collect());
        let ids = piece.row_ids.as_ref().expect("the job is audited");
        let seed_ids: Vec<u32> =
            kept.iter().map(|offset| ids[(offset - piece.start) as usize] as u32).collect();
        let first = job.layout().split_range(split).start;
        let position = |offset: &u32| first + u64::from(*offset);
        let rows: Vec<SeedRow> = kept
            .iter()
            .map(|offset| SeedRow { epoch: split.epoch, position: position(offset), time: 0 })
            .collect();
        let seeds: Vec<Seed> = (0..)
            .zip(&seed_ids)
            .map(|(row, node)| Seed { node_type: 0, slot: 0, row, node: *node })
            .collect();
        let plan = &job.compiled.graph.as_ref().expect("the job samples a graph").plan;
        let mut sampler = NeighborSampler::new(plan.settings.clone()).expect("valid settings");
        let relations = self.loader.graph.relation_views();
        let view = GraphView { node_counts: self.loader.graph.node_counts(), relations: &relations };
        let mut expected = SampledGraph::default();
        let seeds = BatchSeeds { rows: &rows, seeds: &seeds, excluded: &[] };
        sampler.sample(&view, &seeds, &mut expected).expect("the seeds are nodes");

        let list = |name: &str| {
            let column = batch.column_by_name(name).unwrap_or_else(|| panic!("there is no column {name}"));
            column.as_list::<i32>().value(0)
        };
        let (nodes, edges) = (&expected.nodes[0], &expected.edges[0]);
        let unsigned = |name: &str| list(name).as_primitive::<UInt32Type>().values().to_vec();
        let signed = |name: &str| list(name).as_primitive::<Int32Type>().values().to_vec();
        assert_eq!(unsigned("n_id"), nodes.ids);
        assert_eq!(unsigned("num_sampled_nodes"), nodes.hop_counts);
        assert_eq!(unsigned("num_sampled_edges"), edges.hop_counts);
        let as_signed = |values: &[u32]| values.iter().map(|value| *value as i32).collect::<Vec<_>>();
        assert_eq!(signed("row"), as_signed(&edges.sources));
        assert_eq!(signed("colptr"), [vec![0], as_signed(&edges.ends)].concat());
        let x = list("x");
        let x = x.as_fixed_size_list();
        assert_eq!(x.len(), nodes.ids.len());
        for (row, id) in nodes.ids.iter().enumerate() {
            let numbers = x.value(row);
            let numbers = numbers.as_primitive::<Float32Type>().values().to_vec();
            let all: Vec<f32> = (0..numbers.len() as u32).map(|place| feature_value(*id, place)).collect();
            assert_eq!(numbers, all, "node {id}");
        }
        let tokens = list("tokens");
        let lengths: Vec<usize> = tokens.as_list::<i32>().iter().flatten().map(|list| list.len()).collect();
        assert_eq!(lengths, seed_ids.iter().map(|id| *id as usize % 7 + 1).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_the_sample_of_its_seeds_on_any_number_of_threads() {
    let window = "shuffle: { window: 64 }\n";
    let mut all: Vec<Vec<RecordBatch>> = Vec::new();
    for cores in [1, 3] {
        let graph = graph_test((203, 400, 2), window, "", (cores, 64 * MIB)).await;
        let mut batches = Vec::new();
        for epoch in [0, 1] {
            for (split, delivered) in graph.delivered(epoch).await {
                for (piece, batch) in delivered.pieces.iter().zip(&delivered.batches) {
                    assert_eq!(piece.rows, piece.end - piece.start);
                    graph.check(split, piece, batch);
                }
                batches.extend(delivered.batches);
            }
        }
        assert_eq!(batches.len() as u64, 2 * graph.test.layout.steps().expect("the steps are known"));
        assert_ne!(batches[0], batches[batches.len() / 2], "epochs differ");
        assert_eq!(graph.loader.loads.load(Ordering::Relaxed), 1, "a graph is loaded once");
        let stats = graph.test.stats("batch").await;
        assert_eq!((stats.rows_in, stats.rows_out), (406, 406));
        all.push(batches);
    }
    assert_eq!(all[0], all[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_the_times_of_their_stages_are_counted() {
    let graph = graph_test((64, 400, 2), "", "", (2, 64 * MIB)).await;
    graph.delivered(0).await;
    let job = graph.test.engine.job(JOB).expect("the job is loaded");
    let sampling = job.compiled.graph.as_ref().expect("the job samples a graph");
    let forecast = async {
        loop {
            if let Some(expected) = sampling.stats().expected {
                break expected;
            }
            tokio::task::yield_now().await;
        }
    };
    let forecast = tokio::time::timeout(std::time::Duration::from_secs(60), forecast).await;
    let expected = forecast.expect("the graph is small");
    let stats = sampling.stats();
    assert_eq!((stats.batches, stats.seeds, expected.seeds), (8, 64, 8));
    assert!(stats.nodes > stats.seeds && stats.edges > 0 && stats.bytes > 8 * stats.nodes, "{stats:?}");
    let times = [stats.sample_ns, stats.map_ns, stats.gather_ns, stats.encode_ns];
    assert!(times.iter().all(|time| *time > 0), "{stats:?}");
    let mean_nodes = stats.nodes / stats.batches;
    assert!(expected.nodes.abs_diff(mean_nodes) <= mean_nodes / 2, "{expected:?} {stats:?}");
    let edges = graph.loader.graph.sources.len() as u64;
    assert_eq!(stats.graph_bytes, 8 * 401 + 4 * edges + 8 * 400);
}

#[tokio::test]
async fn a_filter_makes_batches_smaller() {
    let filter = "filter: { where: \"id < 16 OR id % 3 = 0 AND id >= 24\" },";
    let graph = graph_test((48, 100, 2), "", filter, (2, 64 * MIB)).await;
    let mut rows = Vec::new();
    for (split, delivered) in graph.delivered(0).await {
        for (piece, batch) in delivered.pieces.iter().zip(&delivered.batches) {
            graph.check(split, piece, batch);
            rows.push(piece.rows);
        }
    }
    assert_eq!(rows, [8, 8, 0, 3, 3, 2], "the third batch has no seeds");
}

#[tokio::test]
async fn a_fetch_starts_between_two_batches() {
    let graph = graph_test((300, 100, 2), "", "", (1, 64 * MIB)).await;
    let split = graph.test.splits(0)[0];
    assert!(graph.test.layout.split_len(split) >= 24);
    let all = graph.delivered(0).await.swap_remove(0).1;
    let rest = graph.test.fetch(split, 16).await;
    assert_eq!(rest.batches, all.batches[2..]);
}

#[tokio::test]
async fn a_seed_that_is_not_a_node_fails_or_is_skipped() {
    for (on_error, is_failure) in [("fail", true), ("skip", false)] {
        let graph = graph_test((24, 20, 2), &format!("on_error: {on_error}\n"), "", (1, 64 * MIB)).await;
        let (mut rows, mut skipped, mut message) = (0, Vec::new(), None);
        for (split, delivered) in graph.delivered(0).await {
            for (piece, batch) in delivered.pieces.iter().zip(&delivered.batches) {
                graph.check(split, piece, batch);
                rows += piece.rows;
                skipped.extend(piece.skipped.iter().map(|row| (row.row_id, row.reason.clone())));
            }
            message = message.or(delivered.failure);
        }
        let reason = "column `node` is 20, but the graph has 20 nodes of this type";
        assert_eq!(message.is_some(), is_failure, "{message:?}");
        match message {
            Some(message) => {
                assert!(message.contains("row 20 at byte") && message.contains(reason), "{message}")
            }
            None => {
                assert_eq!((rows, skipped.len()), (20, 4));
                assert_eq!(skipped[0], (20, reason.to_owned()));
            }
        }
    }
}

#[tokio::test]
async fn a_batch_larger_than_the_memory_is_rejected_in_one_sentence() {
    // A node has 512 KiB of features.
    let graph = graph_test((16, 100, 1 << 17), "", "", (1, 2 * MIB)).await;
    let delivered = graph.delivered(0).await;
    let message = delivered[0].1.failure.clone().expect("the batch does not fit");
    assert!(message.starts_with("a batch of 8 seeds needs "), "{message}");
    assert!(message.ends_with("or raise the workers' --memory"), "{message}");
}

#[tokio::test]
async fn a_graph_that_differs_from_the_index_is_rejected() {
    let mut graph = graph_test((16, 100, 2), "", "", (1, 64 * MIB)).await;
    let summary = graph.test.source.details.dataset.graph.as_mut().expect("the dataset has a graph");
    summary.relations[0].edges += 1;
    let error = load_error(&graph, &graph.test.settings).await;
    assert!(error.starts_with("the graph changed after the dataset was indexed"), "{error}");
}

/// The error of loading the graph of the job.
async fn load_error(graph: &GraphTest, settings: &EngineSettings) -> String {
    let JobSource { details, stores, .. } = &graph.test.source;
    let loaded = GraphJob::load(&details.pipeline, details, settings, stores, None).await;
    loaded.err().expect("the graph cannot be loaded")
}

#[tokio::test]
async fn samplers_are_counted_and_keep_their_memory_within_a_limit() {
    let graph = graph_test((16, 100, 2), "", "", (1, 64 * MIB)).await;
    let JobSource { details, stores, .. } = &graph.test.source;
    let job = GraphJob::load(&details.pipeline, details, &graph.test.settings, stores, None).await;
    let job = job.expect("the graph is loaded").expect("the pipeline samples a graph");
    let rows = [SeedRow { epoch: 0, position: 0, time: 0 }];
    // The node has nine edges.
    let seeds = [Seed { node_type: 0, slot: 0, row: 0, node: 8 }];
    let seeds = BatchSeeds { rows: &rows, seeds: &seeds, excluded: &[] };
    let (large, small) = (MemoryBudget::new(64 * MIB), MemoryBudget::new(8));
    let used = |budget: &MemoryBudget| budget.used_bytes(MemoryAccount::Samplers);
    for (budget, keeps) in [(&large, true), (&small, false)] {
        let buffers = job.sample(&seeds, budget, MIB).expect("the batch is small");
        assert!(used(budget) >= 8 * 100, "the map has 8 bytes per node");
        job.release(buffers, budget);
        assert_eq!(used(budget) > 0, keeps);
        // The next budget begins without idle samplers.
        drop(job.sample(&seeds, budget, MIB));
    }
    let buffers = job.sample(&seeds, &large, MIB).expect("the batch is small");
    job.release(buffers, &large);
    // The memory for batches has decreased since the sampler was created.
    let error = job.sample(&seeds, &large, 24).err().expect("two edges are too few");
    assert!(
        error.starts_with("a batch of 1 seeds needs more than 0 MiB, but this worker has only"),
        "{error}"
    );
    assert_eq!(used(&large), 0, "the memory of a batch that is too large is released");
}

#[tokio::test]
async fn jobs_without_leases_release_their_graph_on_demand() {
    let graph = graph_test((16, 100, 2), "", "", (1, 64 * MIB)).await;
    let engine = &graph.test.engine;
    graph.test.lease(graph.test.splits(0));
    graph.test.load().await;
    engine.remove_idle_graph_jobs();
    assert!(engine.job(JOB).is_some(), "the job has leases");
    graph.test.lease([]);
    engine.remove_idle_graph_jobs();
    assert!(engine.job(JOB).is_none());
    graph.test.lease(graph.test.splits(0));
    assert_eq!(engine.unloaded(), BTreeSet::from([JOB]), "the job is loaded again");
}

#[tokio::test]
async fn a_group_that_does_not_fit_requests_the_memory_of_unused_graphs() {
    let graph = graph_test((16, 100, 2), "", "", (1, 64 * MIB)).await;
    let engine = &graph.test.engine;
    engine.set_graphs(Arc::clone(&graph.loader) as Arc<dyn GraphLoader>);
    let unused = engine.memory_budget().reserve(MemoryAccount::Graphs, 64 * MIB);
    let split = graph.test.splits(0)[0];
    graph.test.lease([split]);
    graph.test.load().await;
    assert!(graph.loader.releases.load(Ordering::Relaxed) > 0);
    drop(unused);
    engine.on_memory_released();
    let delivered = graph.test.fetch(split, 0).await;
    assert!(delivered.failure.is_none() && !delivered.pieces.is_empty());
}
