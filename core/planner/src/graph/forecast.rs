//! The expected size of the batches of a job, from the graph that a worker has loaded.

use feedline_data::graph::GraphView;
use feedline_data::pipeline::{GraphBatchPlan, GraphBatchSize};

use super::sampling::{ModeledSampling, SeedColumn, SeedTable};
use super::topology::{ModeledGraph, reverse_relations};
use super::vip::InclusionModel;

/// The number of parts of a hop. A forecast can end between two parts.
const PARTS: usize = 4;

/// Returns the memory that a forecast needs in bytes.
pub fn forecast_memory_bytes(node_counts: &[u32], plan: &GraphBatchPlan) -> u64 {
    let hops = plan.settings.fanouts.len() as u64;
    let nodes: u64 = node_counts.iter().copied().map(u64::from).sum();
    // Each hop has two numbers of 4 bytes for each node, and the hop that is computed has one of 8 bytes.
    nodes.saturating_mul(8 * (hops + 2))
}

/// Returns the expected size of a batch with these seeds: for each seed column of the plan, the node of each row. Returns `None` if
/// `is_cancelled` returns true.
///
/// # Errors
/// Returns a message if the graph, the seeds or the settings are invalid.
pub fn expected_batch<'a>(
    view: &GraphView<'_>,
    plan: &GraphBatchPlan,
    seeds: &'a [Vec<u32>],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Option<GraphBatchSize>, String> {
    let rows = seeds.iter().map(Vec::len).min().unwrap_or(0);
    let batch_rows = u32::try_from(rows).map_err(|_| format!("a batch has {rows} seeds"))?;
    let reverse = reverse_relations(view)?;
    let graph = ModeledGraph { view: *view, reverse: &reverse };
    let column = |(column, nodes): (&(String, u16), &'a Vec<u32>)| SeedColumn::Nodes {
        node_type: column.1,
        nodes: nodes.as_slice(),
    };
    // Negatives are modeled as uniform nodes, also if they are drawn by degree.
    let negatives = plan.seeds.iter().enumerate().map(|(index, (_, node_type))| SeedColumn::Random {
        node_type: *node_type,
        per_row: f64::from(plan.negatives_of(index)),
    });
    let columns: Vec<SeedColumn<'a>> = plan.seeds.iter().zip(seeds).map(column).chain(negatives).collect();
    let table = SeedTable { count: rows as u64, columns: &columns };
    let sampling = ModeledSampling { batch_rows, settings: plan.settings.clone() };
    let mut model = InclusionModel::new(graph, &table, &sampling)?;
    while let Some(parts) = model.next_hop(PARTS) {
        for part in parts {
            if is_cancelled() {
                return Ok(None);
            }
            part.run();
        }
    }
    let mut counts = model.finish().expected.counts();
    plan.add_reverse_edges(&mut counts, |relation| {
        view.relations.get(relation).map(|edges| usize::from(edges.target_type))
    });
    Ok(Some(plan.size_of(batch_rows, &counts)))
}
