//! Features that do not fit in the memory for graphs.

use futures::future::join_all;

use super::*;
use crate::engine::{FeatureRef, MissingRows};
use crate::settings::GraphDiskSettings;

const X: FeatureRef = FeatureRef::Node { node_type: 0, feature: 0 };
/// The size of a row.
const ROW_BYTES: u64 = 16;

/// A table that reads the rows of `window_batches` batches together.
fn graphs_with(budget: &Arc<MemoryBudget>, memory_bytes: u64, window_batches: usize) -> Arc<WorkerGraphs> {
    let limits = GraphLimits { window_batches, ..GraphLimits::new(memory_bytes) };
    WorkerGraphs::new(Arc::clone(budget), limits, TestHost::default())
}

/// Copies the rows of a batch, and reads those that are not in memory. Returns also how many these are.
async fn gather(graph: &dyn LoadedGraph, ids: &[u32]) -> Result<(Vec<f32>, usize), String> {
    let missing = graph.missing_node_rows(0, 0, ids);
    let cold = missing.len();
    let fetched = if cold == 0 { None } else { Some(graph.fetch(MissingRows::from([(X, missing)])).await?) };
    let mut rows = vec![0; ids.len() * ROW_BYTES as usize];
    graph.copy_node_rows(0, 0, ScalarType::Float32, ids, fetched.as_deref(), &mut rows)?;
    let (numbers, _) = rows.as_chunks::<4>();
    Ok((numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(), cold))
}

fn expected_rows(ids: &[u32]) -> Vec<f32> {
    ids.iter().flat_map(|id| (id * 4..id * 4 + 4).map(|number| number as f32)).collect()
}

#[tokio::test]
async fn rows_do_not_depend_on_the_memory_and_the_window() {
    let scratch = GraphScratch::new();
    scratch.build("g", 1_000, 0.0);
    let topology = scratch.job("g", "").await.bytes;
    let job = scratch.job("g", "x").await;
    let batches: Vec<Vec<u32>> = (0..20)
        .map(|batch| (0..70).map(|place| (batch * 37 + place * place * 13) % 1_000).collect())
        .collect();
    for (hot, window_batches) in [(1_000, 8), (100, 1), (100, 8), (0, 1), (0, 8)] {
        let budget = new_budget();
        let memory = if hot == 1_000 { job.bytes } else { topology + hot * ROW_BYTES };
        let graphs = graphs_with(&budget, memory, window_batches);
        let graph = load(&graphs, &job).await.unwrap();
        assert_eq!(used(&budget), memory, "the hot rows fill the memory");
        let stored = graph.stored_rows(0, 0, 1).unwrap();
        let whole = if hot == 1_000 { hot * ROW_BYTES } else { 0 };
        assert_eq!(stored.data.len() as u64, whole, "consumers receive whole blocks");
        let gathered = join_all(batches.iter().map(|ids| gather(graph.as_ref(), ids))).await;
        let mut cold_rows = 0;
        for (ids, gathered) in batches.iter().zip(gathered) {
            let (rows, cold) = gathered.unwrap();
            assert_eq!(rows, expected_rows(ids), "{hot} hot rows, {window_batches} batches");
            cold_rows += cold;
        }
        assert_eq!(cold_rows == 0, hot == 1_000);
        assert_eq!(budget.used_bytes(MemoryAccount::EncodedRows), 0, "the last batch releases the rows");
    }
}

#[tokio::test]
async fn rows_that_were_read_are_counted_until_their_last_use() {
    let scratch = GraphScratch::new();
    scratch.build("g", 1_000, 0.0);
    let (topology, job) = (scratch.job("g", "").await.bytes, scratch.job("g", "x").await);
    let budget = new_budget();
    let graphs = graphs_with(&budget, topology, 8);
    let graph = load(&graphs, &job).await.unwrap();
    let rows = |ids: std::ops::Range<u64>| MissingRows::from([(X, ids.collect())]);
    let (one, two) = tokio::join!(graph.fetch(rows(0..100)), graph.fetch(rows(50..150)));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(Arc::ptr_eq(&one, &two), "both are read together");
    assert_eq!(one.features[&X].rows(), 150, "no row is read twice");
    let counted = || budget.used_bytes(MemoryAccount::EncodedRows);
    assert_eq!(counted(), 150 * (ROW_BYTES + 8));
    drop(one);
    assert!(counted() > 0);
    drop(two);
    assert_eq!(counted(), 0);
}

#[tokio::test]
async fn a_job_shares_the_hot_rows_of_another() {
    let scratch = GraphScratch::new();
    scratch.build("g", 1_000, 0.0);
    let (topology, job) = (scratch.job("g", "").await.bytes, scratch.job("g", "x").await);
    let budget = new_budget();
    let memory = topology + 10 * ROW_BYTES;
    let graphs = graphs_with(&budget, memory, 8);
    let (one, two) = (load(&graphs, &job).await.unwrap(), load(&graphs, &job).await.unwrap());
    assert_eq!(used(&budget), memory);
    for graph in [one, two] {
        let (rows, cold) = gather(graph.as_ref(), &[9, 10, 999]).await.unwrap();
        assert_eq!((rows, cold), (expected_rows(&[9, 10, 999]), 2));
    }
}

#[tokio::test]
async fn an_unused_feature_gives_its_memory_to_a_larger_graph() {
    let scratch = GraphScratch::new();
    scratch.build("a", 100, 0.0);
    scratch.build("b", 1_000, 0.0);
    let (small, large) = (scratch.job("a", "x").await, scratch.job("b", "x").await);
    let budget = new_budget();
    let memory = scratch.job("b", "").await.bytes + 200 * ROW_BYTES;
    let graphs = graphs_with(&budget, memory, 8);
    drop(load(&graphs, &small).await.unwrap());
    let graph = load(&graphs, &large).await.unwrap();
    assert_eq!(used(&budget), memory);
    let (rows, cold) = gather(graph.as_ref(), &[199, 200]).await.unwrap();
    assert_eq!((rows, cold), (expected_rows(&[199, 200]), 1));
}

#[tokio::test]
async fn a_topology_that_does_not_fit_is_mapped_from_the_disk() {
    let scratch = GraphScratch::new();
    scratch.build("g", 1_000, 0.0);
    let (topology, job) = (scratch.job("g", "").await.bytes, scratch.job("g", "x").await);
    let budget = new_budget();
    let disk = GraphDiskSettings { folder: scratch.path("disk"), limit_bytes: MIB };
    let memory = topology / 2;
    let limits = GraphLimits { disk: Some(disk), ..GraphLimits::new(memory) };
    let mapping = WorkerGraphs::new(Arc::clone(&budget), limits, TestHost::default());
    let (mapped, shared) = (load(&mapping, &job).await.unwrap(), load(&mapping, &job).await.unwrap());
    assert!(used(&budget) <= memory, "only rows of the feature are in memory");
    let other_budget = new_budget();
    let in_memory = load(&graphs(&other_budget, 32 * MIB), &job).await.unwrap();
    let views = |graph: &Arc<dyn LoadedGraph>| {
        let views = graph.relation_views();
        (views[0].offsets.to_vec(), views[0].sources.to_vec())
    };
    assert_eq!(views(&mapped), views(&in_memory));
    assert_eq!(mapped.relation_views()[0].sources.as_ptr(), shared.relation_views()[0].sources.as_ptr());
    let (rows, _) = gather(mapped.as_ref(), &[0, 500, 999]).await.unwrap();
    assert_eq!(rows, expected_rows(&[0, 500, 999]));
    let names =
        std::fs::read_dir(scratch.path("disk/part-000")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ["blocks", "claim"], "the copy has no name");
}

#[tokio::test]
async fn damaged_and_changed_files_are_one_sentence() {
    let scratch = GraphScratch::new();
    scratch.build("g", 1_000, 0.0);
    let (topology, job) = (scratch.job("g", "").await.bytes, scratch.job("g", "x").await);
    let budget = new_budget();
    let path = scratch.path("g").join("nodes/node.x.npy");
    let intact = std::fs::read(&path).unwrap();
    let mut damaged = intact.clone();
    damaged[12_000] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let graphs = graphs_with(&budget, topology, 8);
    let error = load(&graphs, &job).await.unwrap_err();
    assert!(
        error.contains("node.x.npy` at byte 128: ") && error.contains("copy the folder again"),
        "{error}"
    );
    std::fs::write(&path, &intact).unwrap();
    let graph = load(&graphs, &job).await.unwrap();
    assert!(gather(graph.as_ref(), &[999]).await.is_ok());
    std::fs::write(&path, &intact[..intact.len() - 1]).unwrap();
    let error = gather(graph.as_ref(), &[999]).await.unwrap_err();
    assert!(error.contains("node.x.npy") && !error.contains('\n'), "{error}");
    std::fs::write(&path, &intact).unwrap();
    let again = load(&graphs, &job).await.unwrap();
    assert!(gather(again.as_ref(), &[999]).await.is_ok(), "the next job opens the file again");
    let error = graph.copy_node_rows(0, 0, ScalarType::Float32, &[999], None, &mut [0; 16]).unwrap_err();
    assert!(error.starts_with("the feature has no row 999"), "{error}");
}
