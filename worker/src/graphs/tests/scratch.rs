//! Builds graphs in a temporary directory, and the jobs that sample them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::Layout;
use feedline_data::manifest::{Manifest, Shard};
use feedline_data::messages::JobDetails;
use feedline_data::pipeline::{GraphBatchPlan, Pipeline};
use feedline_data::tenants::TenantReads;
use feedline_graph::{
    BuildSettings, ColumnRef, FeatureSpec, GraphAccess, GraphFolder, GraphSpec, NodeSpec, SeedSpec,
    build_graph, topology_bytes,
};
use feedline_sources::{Dataset, Stores};
use tempfile::TempDir;

/// A temporary directory with graphs.
pub(super) struct GraphScratch {
    directory: TempDir,
}

/// A job that samples a graph.
pub(super) struct TestGraph {
    pub(super) details: JobDetails,
    pub(super) plan: GraphBatchPlan,
    pub(super) stores: Arc<Stores>,
    /// The size of the graph in memory.
    pub(super) bytes: u64,
}

impl GraphScratch {
    pub(super) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), contents).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Builds a graph in the directory `name`, or builds it again: a circle of nodes. The row of node `n` in the feature `x` has four
    /// numbers from `first + 4 * n`.
    pub(super) fn build(&self, name: &str, nodes: u32, first: f32) {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        let edges: String = (0..nodes).map(|node| format!("{node},{}\n", (node + 1) % nodes)).collect();
        let numbers = (0..nodes * 4).flat_map(|number| (first + number as f32).to_le_bytes());
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({nodes}, 4), }}");
        let text = format!("{text:<117}\n");
        let mut array = b"\x93NUMPY\x01\x00".to_vec();
        array.extend((text.len() as u16).to_le_bytes());
        array.extend(text.bytes().chain(numbers));
        let x = ColumnRef::from(self.write("x.npy", array));
        let mut spec = NodeSpec::default();
        spec.features.insert("x".to_owned(), FeatureSpec { from: x, dtype: None });
        let all = ColumnRef { path: "all".to_owned(), column: None };
        spec.seeds.insert("all".to_owned(), SeedSpec { from: all, label: None, time: None });
        let spec = GraphSpec::homogeneous(spec, vec![self.write("edges.csv", edges)]);
        build_graph(&spec, &path, &BuildSettings::new(1 << 24, 1)).unwrap();
    }

    pub(super) async fn open(&self, name: &str) -> GraphFolder {
        let access = GraphAccess {
            stores: Stores::new(Vec::new()),
            credentials: None,
            tenant: TenantReads::default(),
        };
        GraphFolder::open(access, self.path(name).to_str().unwrap()).await.unwrap()
    }

    /// Indexes the seeds of a graph, and returns a job with these features.
    pub(super) async fn job(&self, name: &str, features: &str) -> TestGraph {
        let url = self.path(name);
        let yaml = format!(
            "name: test\nsource: {{ url: '{}', format: graph, seeds: all }}\noperators: [ sample_neighbors: {{ size: 8, fanouts: [2], \
             features: [{features}] }} ]\n",
            url.display()
        );
        let pipeline = Pipeline::from_yaml(&yaml, "test.yaml").unwrap();
        let stores = Stores::new(Vec::new());
        let dataset = Dataset::new(pipeline.source.clone(), Arc::clone(&stores)).unwrap();
        let mut shards = Vec::new();
        for object in dataset.list().await.unwrap() {
            let indexed = dataset.index_shard(&object).await.unwrap();
            shards.push(Shard { object, index: indexed.index, digest: indexed.digest });
        }
        let summary = Manifest::build(shards).unwrap().summary();
        let plan = pipeline.graph_batches(&summary).unwrap().expect("the pipeline samples a graph");
        let folder = self.open(name).await;
        let files = folder.description().nodes[0].features.iter().map(|feature| feature.file.bytes);
        let feature_bytes: u64 = if features.is_empty() { 0 } else { files.sum() };
        let details = JobDetails {
            job: JobId(1),
            layout: Layout::new(&pipeline, &summary, 1, 1),
            pipeline,
            source_key: String::new(),
            dataset: summary,
            audit: false,
            cache: None,
            reads: TenantReads::default(),
        };
        TestGraph { details, plan, stores, bytes: topology_bytes(&folder) + feature_bytes }
    }
}
