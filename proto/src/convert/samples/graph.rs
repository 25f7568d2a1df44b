//! Samples of a graph's summary and of the operator that samples it.

use std::collections::BTreeMap;

use feedline_data::graph::description::{GraphHash, SeedKind};
use feedline_data::graph::{
    FeatureSummary, GraphLayout, GraphSummary, NegativeMode, NegativeWeights, NodeTypeSummary,
    RelationSummary, Resample, SeedSetSummary, TemporalStrategy,
};
use feedline_data::pipeline::{
    ExcludedSeedEdges, FanoutList, FeatureList, NegativeSampling, PlacementMode, Remainder, SampleNeighbors,
    SeedTime, SubgraphEdges,
};
use feedline_data::schema::ScalarType;

fn feature(name: &str) -> FeatureSummary {
    FeatureSummary {
        name: name.to_owned(),
        dtype: ScalarType::Float16,
        shape: vec![128],
        content: GraphHash(u128::MAX),
    }
}

/// The summary of a graph with two node types.
pub(super) fn graph() -> GraphSummary {
    let node_type =
        |name: &str, features| NodeTypeSummary { name: name.to_owned(), count: u32::MAX, features };
    let relation = RelationSummary {
        source: "author".to_owned(),
        name: "writes".to_owned(),
        target: "paper".to_owned(),
        edges: 1 << 40,
        undirected: true,
        has_weights: true,
        has_times: true,
        features: vec![feature("year")],
    };
    GraphSummary {
        topology: GraphHash(7),
        nodes: vec![node_type("paper", vec![feature("x")]), node_type("author", Vec::new())],
        relations: vec![relation],
        seeds: vec![SeedSetSummary { name: "train".to_owned(), of: SeedKind::Nodes("paper".to_owned()) }],
    }
}

/// The operator with all parameters.
pub(super) fn sample_neighbors() -> SampleNeighbors {
    SampleNeighbors {
        size: 1024,
        fanouts: FanoutList::ByRelation(BTreeMap::from([("author__writes__paper".to_owned(), vec![15, -1])])),
        features: FeatureList::Typed(BTreeMap::from([("x".to_owned(), ScalarType::Float32)])),
        edge_features: vec!["year".to_owned()],
        layout: GraphLayout::Blocks,
        subgraph: SubgraphEdges::Bidirectional,
        remainder: Remainder::Drop,
        graph: Some("s3://graphs/papers/".to_owned()),
        seed_type: Some("paper".to_owned()),
        replace: true,
        disjoint: true,
        weighted: true,
        time: Some(SeedTime {
            column: "time".to_owned(),
            strategy: TemporalStrategy::Last,
            window: Some(u64::MAX),
        }),
        resample: Resample::Epoch,
        exclude_seed_edges: ExcludedSeedEdges::Both,
        negatives: Some(NegativeSampling {
            mode: NegativeMode::Triplet,
            amount: 4,
            strict: true,
            by: NegativeWeights::Degree,
        }),
        edge_ids: true,
        placement: PlacementMode::Partition,
    }
}
