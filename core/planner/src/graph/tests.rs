//! Compares the model with batches that a simple sampler draws, and checks properties of the model.

mod forecasts;
mod measured;
mod properties;
mod random_graph;
mod reference_sampler;

use feedline_data::graph::description::GraphHash;
use feedline_data::graph::{
    Fanout, FeatureSummary, GraphLayout, GraphSummary, NodeTypeSummary, RelationSummary, SamplingSettings,
};
use feedline_data::schema::ScalarType;

use self::random_graph::RandomGraph;
use super::sampling::{ModeledSampling, SeedColumn, SeedTable};
use super::vip::{BatchInclusion, InclusionModel};

/// Without replacement.
fn sampling(batch_rows: u32, fanouts: &[u32], layout: GraphLayout) -> ModeledSampling {
    let fanouts = fanouts.iter().map(|fanout| vec![Fanout::Limit(*fanout)]).collect();
    ModeledSampling {
        batch_rows,
        settings: SamplingSettings { layout, fanouts, ..SamplingSettings::default() },
    }
}

/// The model of a graph with one relation.
fn model(graph: &RandomGraph, seeds: &[u32], sampling: &ModeledSampling) -> BatchInclusion {
    let columns = [SeedColumn::Nodes { node_type: 0, nodes: seeds }];
    let seeds = SeedTable { count: seeds.len() as u64, columns: &columns };
    InclusionModel::run(graph.modeled(&[graph.edges()]), &seeds, sampling).unwrap()
}

/// A graph with one relation, and a feature of 64 bytes.
pub(crate) fn summary(nodes: u32, edges: u64) -> GraphSummary {
    let x = FeatureSummary {
        name: "x".to_owned(),
        dtype: ScalarType::Float32,
        shape: vec![16],
        content: GraphHash(1),
    };
    let relation = RelationSummary {
        source: "n".to_owned(),
        name: "e".to_owned(),
        target: "n".to_owned(),
        edges,
        undirected: false,
        has_weights: false,
        has_times: false,
        features: Vec::new(),
    };
    GraphSummary {
        topology: GraphHash(1),
        nodes: vec![NodeTypeSummary { name: "n".to_owned(), count: nodes, features: vec![x] }],
        relations: vec![relation],
        seeds: Vec::new(),
    }
}
