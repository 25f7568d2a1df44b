//! Builds in the order `vip`, with a ranking that is not a model of batches.

use std::sync::{Arc, Mutex};

use feedline_data::graph::GraphView;
use feedline_data::graph::description::{ExpectedHitRate, HIT_RATE_POINTS, NodeOrder};

use super::super::node_ranking::{NodeRank, NodeRanking, RankedBatches, SeedNodeColumn};
use super::super::run::{BuildSettings, lock};
use super::super::spec::{
    ColumnRef, FeatureSpec, GraphSpec, LinkSeedSpec, NodeSpec, OneOrMore, OrderSpec, SeedSpec,
};
use super::scratch::{Scratch, numbers};

/// What a ranking received.
#[derive(Debug, Default, PartialEq)]
struct ReceivedGraph {
    counts: Vec<u32>,
    /// The offsets and sources of each relation.
    relations: Vec<(Vec<u64>, Vec<u32>)>,
    columns: Vec<SeedNodeColumn>,
    fanouts: Vec<i32>,
}

/// Orders nodes from the last to the first.
#[derive(Default)]
struct ReversedRanking {
    received: Mutex<ReceivedGraph>,
}

impl NodeRanking for ReversedRanking {
    fn rank(
        &self,
        graph: &GraphView<'_>,
        batches: &RankedBatches<'_>,
        _threads: usize,
    ) -> Result<Vec<NodeRank>, String> {
        *lock(&self.received) = ReceivedGraph {
            counts: graph.node_counts.to_vec(),
            relations: graph
                .relations
                .iter()
                .map(|edges| (edges.offsets.to_vec(), edges.sources.to_vec()))
                .collect(),
            columns: batches.columns.to_vec(),
            fanouts: batches.fanouts.to_vec(),
        };
        let rank = |&count: &u32| NodeRank {
            nodes: (0..count).rev().collect(),
            curve: vec![ExpectedHitRate { rows: count, hits_per_million: 1_000_000 }; HIT_RATE_POINTS],
        };
        Ok(graph.node_counts.iter().map(rank).collect())
    }
}

/// Four nodes with a feature, weighted edges, and the seeds 3 and 0.
fn spec(scratch: &Scratch) -> GraphSpec {
    let edges = scratch.write("e.csv", "src,dst,w\n2,0,5\n2,1,5\n3,2,5\n2,3,5\n");
    let x = scratch.write_integers("x.npy", &[4], [10, 11, 12, 13]);
    let train = scratch.write_integers("train.npy", &[2], [3, 0]);
    let mut nodes = NodeSpec::default();
    nodes.features.insert("x".to_owned(), FeatureSpec { from: ColumnRef::from(x), dtype: None });
    nodes.seeds.insert("train".to_owned(), SeedSpec::new(ColumnRef::from(train)));
    let mut spec = GraphSpec::homogeneous(nodes, vec![edges]);
    spec.relations[0].weight = Some("w".to_owned());
    spec.order = OrderSpec::parse("vip:train:15,-1").unwrap();
    spec
}

fn settings(ranking: &Arc<ReversedRanking>) -> BuildSettings {
    let ranking = Arc::clone(ranking) as Arc<dyn NodeRanking>;
    BuildSettings { ranking: Some(ranking), ..BuildSettings::new(1 << 24, 2) }
}

#[test]
fn nodes_are_stored_in_the_order_of_the_ranking() {
    let scratch = Scratch::new();
    let ranking = Arc::new(ReversedRanking::default());
    let built = scratch.build_with("g", &spec(&scratch), &settings(&ranking)).unwrap();
    built.check().unwrap();
    let expected = ReceivedGraph {
        counts: vec![4],
        relations: vec![(vec![0, 1, 2, 3, 4], vec![2, 2, 3, 2])],
        columns: vec![SeedNodeColumn { node_type: 0, nodes: vec![3, 0] }],
        fanouts: vec![15, -1],
    };
    assert_eq!(*lock(&ranking.received), expected, "the ranking receives the user's order");
    let topology = built.topology();
    assert_eq!(topology.positions(0), Some(&[3, 2, 1, 0][..]));
    let views = topology.relation_views();
    assert_eq!((views[0].offsets, views[0].sources), (&[0, 1, 2, 3, 4][..], &[1, 0, 1, 1][..]));
    assert!(views[0].weights.is_some());
    assert_eq!(numbers(&built.array("nodes/node.x.npy"), i64::from_le_bytes), [13, 12, 11, 10]);
    assert_eq!(built.description.order, NodeOrder::Vip);
    let vip = built.description.vip.as_ref().unwrap();
    assert_eq!((vip.seeds.as_str(), vip.fanouts.as_slice(), vip.batch_rows), ("train", &[15, -1][..], 1_024));
    let mut plain = spec(&scratch);
    plain.order = OrderSpec::None;
    let plain = scratch.build("plain", &plain);
    assert_ne!(plain.description.topology_fingerprint(), built.description.topology_fingerprint());
    assert!(plain.description.vip.is_none());
}

/// The seeds may be edges, and reverse relations belong to the graph.
#[test]
fn links_and_reverse_edges_are_ranked() {
    let scratch = Scratch::new();
    let mut spec = spec(&scratch);
    spec.order = OrderSpec::parse("vip:links:5").unwrap();
    let links = scratch.write_integers("links.npy", &[2, 1], [2, 3]);
    let relation = &mut spec.relations[0];
    relation.reverse = Some("from".to_owned());
    let links = LinkSeedSpec { edges: OneOrMore::One(links), columns: None, label: None, time: None };
    relation.seeds.insert("links".to_owned(), links);
    let ranking = Arc::new(ReversedRanking::default());
    scratch.build_with("g", &spec, &settings(&ranking)).unwrap().check().unwrap();
    let received = lock(&ranking.received);
    let ends = [vec![2], vec![3]].map(|nodes| SeedNodeColumn { node_type: 0, nodes });
    assert_eq!(received.columns, ends);
    assert_eq!(received.relations[1], (vec![0, 0, 0, 3, 4], vec![0, 1, 3, 2]));
}

#[test]
fn an_order_that_cannot_be_computed_is_rejected() {
    let scratch = Scratch::new();
    let ranking = Arc::new(ReversedRanking::default());
    let mut unknown = spec(&scratch);
    unknown.order = OrderSpec::parse("vip:test:15").unwrap();
    assert!(scratch.error(&unknown).contains("the seed set `test`, which does not exist"));
    assert!(scratch.error(&spec(&scratch)).contains("this program cannot compute the order `vip`"));
    let small = BuildSettings { memory_bytes: 200, ..settings(&ranking) };
    let error = scratch.build_with("small", &spec(&scratch), &small).map(drop).unwrap_err().to_string();
    // Five offsets, four sources, and 64 bytes for each node. The seeds are read later.
    assert!(error.contains("needs at least 312 bytes of memory"), "{error}");
}
