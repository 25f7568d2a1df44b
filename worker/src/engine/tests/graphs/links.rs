//! Links with negatives, and bidirectional graphs.

use std::collections::BTreeSet;

use arrow::array::ArrayRef;
use arrow::datatypes::Int64Type;

use super::*;

/// The number of links, and of nodes of the graph.
const LINKS: i64 = 24;
const NODES: u32 = 100;

/// Delivers the batches of 8 links of an epoch. Link `id` leads from node `id` to node `7 * id + 1`.
async fn link_batches(parameters: &str) -> Vec<RecordBatch> {
    let link = |id: i64| {
        let (target, label) = ((7 * id + 1) % i64::from(NODES), id % 3);
        format!("{{\"id\": {id}, \"source\": {id}, \"target\": {target}, \"label\": {label}}}\n")
    };
    let operators = format!("operators: [ {parameters}, graph: memory, size: 8, fanouts: [3, 2] }} ]\n");
    let lines: String = (0..LINKS).map(link).collect();
    let graph = with_graph(TestEngine::new(&lines, &operators, 1, 1, 64 * MIB).await, NODES, 2);
    let mut batches = Vec::new();
    for (_, delivered) in graph.delivered(0).await {
        assert_eq!(delivered.failure, None);
        batches.extend(delivered.batches);
    }
    assert_eq!(batches.len(), 3);
    batches
}

fn list(batch: &RecordBatch, name: &str) -> ArrayRef {
    let column = batch.column_by_name(name).unwrap_or_else(|| panic!("there is no column {name}"));
    column.as_list::<i32>().value(0)
}

fn signed(batch: &RecordBatch, name: &str) -> Vec<usize> {
    list(batch, name).as_primitive::<Int32Type>().values().iter().map(|value| *value as usize).collect()
}

fn longs(batch: &RecordBatch, name: &str) -> Vec<i64> {
    list(batch, name).as_primitive::<Int64Type>().values().to_vec()
}

/// The id of a node in the graph.
fn node_ids(batch: &RecordBatch) -> Vec<u32> {
    list(batch, "n_id").as_primitive::<UInt32Type>().values().to_vec()
}

/// Whether the graph has this edge: node `n` has edges from `n + 1` to `n + 1 + n % 9`.
fn is_edge(source: u32, target: u32) -> bool {
    (1..=1 + target % 9).any(|step| (target + step) % NODES == source)
}

#[tokio::test]
async fn binary_negatives_follow_the_links_with_label_0() {
    let batches =
        link_batches("sample_neighbors: { negatives: { mode: binary, amount: 2, strict: true }").await;
    for batch in &batches {
        let (ids, ends) = (node_ids(batch), signed(batch, "edge_label_index"));
        assert_eq!(ends.len(), 2 * 24, "8 links and 16 negatives");
        let pairs: Vec<(u32, u32)> = (0..24).map(|pair| (ids[ends[pair]], ids[ends[24 + pair]])).collect();
        let links = longs(batch, "id").into_iter().map(|id| (id as u32, (7 * id as u32 + 1) % NODES));
        assert_eq!(pairs[..8], links.collect::<Vec<_>>());
        assert!(pairs[8..].iter().all(|(source, target)| !is_edge(*source, *target)), "{pairs:?}");
        let labels: Vec<i64> = longs(batch, "label").iter().map(|label| label + 1).chain([0; 16]).collect();
        assert_eq!(longs(batch, "edge_label"), labels);
    }
    let unlabeled = link_batches(
        "select: { columns: [source, target] }, sample_neighbors: { negatives: { mode: binary }",
    )
    .await;
    let labels = list(&unlabeled[0], "edge_label").as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(labels, [[1.0; 8], [0.0; 8]].concat());
}

#[tokio::test]
async fn triplets_have_the_targets_of_each_link() {
    let one = link_batches("sample_neighbors: { disjoint: true, negatives: { mode: triplet }").await;
    for batch in &one {
        let columns = ["src_index", "dst_pos_index", "dst_neg_index"].map(|name| signed(batch, name));
        assert!(columns.iter().all(|column| column.len() == 8));
        assert!(batch.column_by_name("edge_label_index").is_none());
        let rows = signed(batch, "batch");
        assert_eq!(rows.iter().copied().collect::<BTreeSet<usize>>(), (0..8).collect::<BTreeSet<usize>>());
        for row in 0..8 {
            let trees = columns.each_ref().map(|column| rows[column[row]]);
            assert_eq!(trees, [row; 3], "the nodes of a link are in trees of its row");
        }
    }
    let three = link_batches("sample_neighbors: { negatives: { mode: triplet, amount: 3 }").await;
    let negatives = list(&three[0], "dst_neg_index");
    let negatives = negatives.as_fixed_size_list();
    assert_eq!((negatives.len(), negatives.value_length()), (8, 3));
    let nodes = node_ids(&three[0]).len();
    let locals = negatives.values().as_primitive::<Int32Type>().values();
    assert!(locals.iter().all(|local| (*local as usize) < nodes));
}

#[tokio::test]
async fn the_edges_of_a_bidirectional_graph_lead_in_both_directions() {
    let batches = link_batches("sample_neighbors: { subgraph: bidirectional").await;
    for batch in &batches {
        let (offsets, sources) = (signed(batch, "colptr"), signed(batch, "row"));
        assert_eq!(offsets.len(), node_ids(batch).len() + 1, "all nodes are targets");
        let edges: BTreeSet<(usize, usize)> = (0..offsets.len() - 1)
            .flat_map(|target| {
                sources[offsets[target]..offsets[target + 1]].iter().map(move |source| (*source, target))
            })
            .collect();
        assert_eq!(edges.len(), sources.len(), "there are no duplicates");
        assert!(edges.iter().all(|(source, target)| edges.contains(&(*target, *source))));
        assert!(batch.column_by_name("num_sampled_edges").is_none());
        assert!(batch.column_by_name("num_sampled_nodes").is_none());
    }
}
