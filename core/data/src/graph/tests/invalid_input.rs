//! Invalid graphs and seeds cause errors, not panics.

use proptest::prelude::*;

use super::test_graph::{TestCase, TestRelation};
use crate::graph::{
    BatchSeeds, Fanout, GraphView, NeighborSampler, RelationView, SampleError, SampledGraph,
    SamplingSettings, Seed, SeedRow,
};

const ROWS: [SeedRow; 1] = [SeedRow { epoch: 0, position: 0, time: 0 }];
const SEED: Seed = Seed { node_type: 1, slot: 0, row: 0, node: 0 };

fn sample(settings: SamplingSettings, relations: &[RelationView<'_>], seed: Seed) -> Result<(), SampleError> {
    let graph = GraphView { node_counts: &[4, 1], relations };
    let seeds = BatchSeeds { rows: &ROWS, seeds: &[seed], excluded: &[] };
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    sampler.sample(&graph, &seeds, &mut SampledGraph::default())
}

fn all_neighbors() -> SamplingSettings {
    SamplingSettings { fanouts: vec![vec![Fanout::All]], ..SamplingSettings::default() }
}

#[test]
fn an_error_names_the_invalid_entry() {
    let relation = TestRelation::star(4);
    let valid = relation.view();
    let error = |settings: SamplingSettings, view: RelationView<'_>, seed: Seed| {
        sample(settings, &[view], seed).unwrap_err().to_string()
    };
    assert_eq!(sample(all_neighbors(), &[valid], SEED), Ok(()));
    assert_eq!(
        error(all_neighbors(), RelationView { offsets: &[0, 5], ..valid }, SEED),
        "the offsets of node 0 in relation 0 are invalid; check the graph with `feedline graph check`"
    );
    assert_eq!(
        error(all_neighbors(), RelationView { offsets: &[0], ..valid }, SEED),
        "the arrays of relation 0 do not match the numbers of nodes and edges; check the graph with `feedline graph check`"
    );
    assert_eq!(
        error(all_neighbors(), RelationView { sources: &[0, 1, 4, 2], ..valid }, SEED),
        "relation 0 contains the source 4, but there are 4 nodes of this type; check the graph with `feedline graph check`"
    );
    assert_eq!(
        error(all_neighbors(), valid, Seed { node: 1, ..SEED }),
        "the seed 1 is outside of the 1 nodes of node type 1; use a seed set of this graph"
    );
    assert_eq!(
        error(all_neighbors(), valid, Seed { node_type: 2, ..SEED }),
        "the seed 0 is outside of the 0 nodes of node type 2; use a seed set of this graph"
    );
    assert_eq!(
        error(all_neighbors(), valid, Seed { row: 1, ..SEED }),
        "the seed 0 belongs to row 1, but the batch has 1 rows"
    );
    assert_eq!(
        error(SamplingSettings { max_edges: 3, ..all_neighbors() }, valid, SEED),
        "a batch would have more than 3 edges of relation 0; use smaller fanouts or a smaller batch"
    );
    assert_eq!(
        sample(all_neighbors(), &[valid, valid], SEED),
        Err(SampleError::RelationCount { found: 2, expected: 1 })
    );
}

#[test]
fn a_batch_may_have_no_seeds() {
    let relation = TestRelation::star(4);
    let relations = [relation.view()];
    let graph = GraphView { node_counts: &[4, 1], relations: &relations };
    let mut sampler = NeighborSampler::new(all_neighbors()).expect("the settings are valid");
    let mut output = SampledGraph::default();
    assert_eq!(sampler.sample(&graph, &BatchSeeds::default(), &mut output), Ok(()));
    assert_eq!(output.nodes[0].hop_counts, [0, 0]);
    assert_eq!((output.edges[0].sources.len(), output.edges[0].hop_counts.as_slice()), (0, &[0][..]));
}

proptest! {
    /// Overwrites entries of a valid graph.
    #[test]
    fn arbitrary_entries_do_not_cause_a_panic(
        key: u64, changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<u32>(), any::<bool>()), 1..8),
    ) {
        let mut case = TestCase::random(key);
        let count = case.graph.relations.len();
        for (index, array, value, is_small) in changes {
            let relation = &mut case.graph.relations[index.index(count)];
            let value = if is_small { value % 16 } else { value };
            match array {
                0 => *index.get_mut(&mut relation.offsets) = u64::from(value),
                1 if !relation.sources.is_empty() => *index.get_mut(&mut relation.sources) = value,
                2 => {
                    if let Some(weights) = relation.weights.as_mut().filter(|weights| !weights.is_empty()) {
                        *index.get_mut(weights) = value;
                    }
                }
                _ => {
                    if let Some(times) = relation.times.as_mut().filter(|times| !times.is_empty()) {
                        *index.get_mut(times) = i64::from(value) - 8;
                    }
                }
            }
        }
        let relations: Vec<RelationView<'_>> = case.graph.relations.iter().map(TestRelation::view).collect();
        let graph = GraphView { node_counts: &case.graph.node_counts, relations: &relations };
        let result = case.sampler().sample(&graph, &case.seeds.view(), &mut SampledGraph::default());
        let is_valid = relations.iter().all(|relation| relation.check(&case.graph.node_counts).is_ok());
        prop_assert!(!is_valid || result.is_ok(), "{:?}", result);
    }
}
