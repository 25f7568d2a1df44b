//! Fixed draws and digests of fixed samples. A change of these values changes the batches of existing jobs.

use expect_test::expect;
use xxhash_rust::xxh3::xxh3_64;

use super::test_graph::{TestGraph, TestRandom, TestRelation, TestSeeds};
use crate::graph::draws::{DrawScope, DrawStream};
use crate::graph::{
    Fanout, GraphLayout, NegativeMode, NegativeRule, NegativeWeights, NeighborSampler, Resample,
    SampledGraph, SamplingSettings, Seed, SeedEdge, SeedRow, TemporalRule, TemporalStrategy,
};

/// The example in `docs/graphs.md`. Its values were computed by an independent program.
#[test]
fn the_documented_example_is_correct() {
    let scope = |resample: Resample| DrawScope { seed: 7, operator: 2, resample };
    let row = SeedRow { epoch: 3, position: 4096, time: 0 };
    let hex = |key: [u32; 2]| format!("{:08x}{:08x}", key[1], key[0]);
    assert_eq!(hex(scope(Resample::Batch).key(&row, None)), "9e2fd29be5b82742");
    assert_eq!(hex(scope(Resample::Batch).key(&row, Some(1))), "55e15d30e26a7122");
    assert_eq!(hex(scope(Resample::Epoch).key(&row, Some(1))), "0f540cdedbefda51");
    assert_eq!(hex(scope(Resample::Never).key(&row, None)), "e880a903bcff6547");

    let mut draws = DrawStream::new(scope(Resample::Batch).key(&row, None), 5, 1, 0);
    let numbers: Vec<u32> = (16..21).map(|bound| draws.below(bound)).collect();
    assert_eq!(numbers, [8, 7, 2, 11, 16]);
    assert_eq!(picks(20, 5, None), [8, 7, 2, 11, 16]);
    assert_eq!(picks(1_000, 5, None), [544, 423, 148, 606, 819]);
    assert_eq!(picks(6, 3, Some(vec![1, 3, 6, 10, 20, 40])), [5, 3, 1]);
}

/// Returns the positions that are sampled for node 5 in relation 1, which has this number of edges. Relation 0 has no edges.
fn picks(size: u32, fanout: u32, weights: Option<Vec<u32>>) -> Vec<u64> {
    let edges = u64::from(size);
    let offsets = vec![0, 0, 0, 0, 0, 0, edges];
    let empty = TestRelation { offsets: vec![0; 7], ..TestRelation::star(0) };
    let relation = TestRelation { offsets, weights, ..TestRelation::star(size) };
    let graph = TestGraph { node_counts: vec![size, 6], relations: vec![empty, relation] };
    let settings = SamplingSettings {
        seed: 7,
        operator: 2,
        edge_positions: true,
        fanouts: vec![vec![Fanout::Limit(fanout); 2]],
        ..SamplingSettings::default()
    };
    let mut seeds = TestSeeds::of_nodes(&[5], 3, 4096);
    seeds.seeds[0].node_type = 1;
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    graph.sample(&mut sampler, &seeds.view()).edges.remove(1).positions
}

/// A graph with two node types and four relations: plain, weighted, with times, and with both.
fn graph() -> TestGraph {
    let node_counts = vec![400, 150];
    let random = &mut TestRandom::new(30);
    let relations = vec![
        TestRelation::random(random, &node_counts, (0, 0), 60, (false, false)),
        TestRelation::random(random, &node_counts, (1, 0), 30, (true, false)),
        TestRelation::random(random, &node_counts, (0, 1), 700, (false, true)),
        TestRelation::random(random, &node_counts, (1, 1), 10, (true, true)),
    ];
    TestGraph { node_counts, relations }
}

/// Twenty rows of a link from type 0 to type 1.
fn links(graph: &TestGraph) -> TestSeeds {
    let mut seeds = TestSeeds::default();
    for row in 0..20_u32 {
        let target = row * 7 % 150;
        let edges = &graph.relations[2];
        let first = edges.offsets[target as usize] as usize;
        let source = edges.sources[first.min(edges.sources.len() - 1)];
        seeds.rows.push(SeedRow {
            epoch: 1,
            position: 1_000_000 + u64::from(row),
            time: i64::from(row % 12),
        });
        seeds.seeds.push(Seed { node_type: 0, slot: 0, row, node: source });
        seeds.seeds.push(Seed { node_type: 1, slot: 1, row, node: target });
        seeds.excluded.push(SeedEdge { relation: 2, row, source, target });
    }
    seeds
}

/// Returns a digest of all numbers of a sample, with the lengths of all lists.
fn digest(sampled: &SampledGraph) -> u64 {
    let mut bytes = Vec::new();
    let mut add = |values: &mut dyn ExactSizeIterator<Item = u64>| {
        bytes.extend((values.len() as u64).to_le_bytes());
        values.for_each(|value| bytes.extend(value.to_le_bytes()));
    };
    for nodes in &sampled.nodes {
        for list in [&nodes.ids, &nodes.trees, &nodes.hop_counts] {
            add(&mut list.iter().map(|value| u64::from(*value)));
        }
    }
    for edges in &sampled.edges {
        for list in [&edges.sources, &edges.ends, &edges.hop_counts] {
            add(&mut list.iter().map(|value| u64::from(*value)));
        }
        add(&mut edges.positions.iter().copied());
        add(&mut edges
            .hop_targets
            .iter()
            .map(|targets| u64::from(targets.start) << 32 | u64::from(targets.end)));
    }
    add(&mut sampled.seed_locals.iter().map(|value| u64::from(*value)));
    xxh3_64(&bytes)
}

#[test]
fn samples_do_not_change_between_releases() {
    let graph = graph();
    let seeds = links(&graph);
    let plain = SamplingSettings {
        seed: 9,
        operator: 3,
        merge_seeds: true,
        edge_positions: true,
        fanouts: vec![vec![Fanout::Limit(5), Fanout::Limit(3), Fanout::Limit(70), Fanout::Limit(2)]; 2],
        ..SamplingSettings::default()
    };
    let disjoint = SamplingSettings { disjoint: true, ..plain.clone() };
    let last = TemporalRule { strategy: TemporalStrategy::Last, window: None };
    let window = TemporalRule { strategy: TemporalStrategy::Uniform, window: Some(4) };
    // Relations 1 and 2 lead in opposite directions. The others are their own reverse.
    let reverses = vec![Some(0), Some(2), Some(1), Some(3)];
    let triplet = NegativeRule {
        mode: NegativeMode::Triplet,
        amount: 3,
        strict: false,
        by: NegativeWeights::Uniform,
        relation: 2,
        reverse: 1,
    };
    let strict = NegativeRule { amount: 2, strict: true, by: NegativeWeights::Degree, ..triplet };
    let binary = NegativeRule { mode: NegativeMode::Binary, ..strict };
    let cases = [
        ("subgraph", plain.clone()),
        ("blocks", SamplingSettings { layout: GraphLayout::Blocks, ..plain.clone() }),
        ("replace", SamplingSettings { replace: true, ..plain.clone() }),
        ("separate seeds", SamplingSettings { merge_seeds: false, ..plain.clone() }),
        ("all neighbors", SamplingSettings { fanouts: vec![vec![Fanout::All; 4]], ..plain.clone() }),
        ("resample epoch", SamplingSettings { resample: Resample::Epoch, ..plain.clone() }),
        ("resample never", SamplingSettings { resample: Resample::Never, ..plain.clone() }),
        ("disjoint", disjoint.clone()),
        ("disjoint blocks", SamplingSettings { layout: GraphLayout::Blocks, ..disjoint.clone() }),
        ("temporal", SamplingSettings { temporal: Some(TemporalRule::default()), ..disjoint.clone() }),
        ("temporal last", SamplingSettings { temporal: Some(last), ..disjoint.clone() }),
        ("temporal window", SamplingSettings { temporal: Some(window), ..disjoint.clone() }),
        ("bidirectional", SamplingSettings { reverses, edge_positions: false, ..plain.clone() }),
        ("triplet", SamplingSettings { negatives: Some(triplet), ..plain.clone() }),
        ("strict binary by degree", SamplingSettings { negatives: Some(binary), ..plain }),
        ("disjoint strict triplet by degree", SamplingSettings { negatives: Some(strict), ..disjoint }),
    ];
    let mut lines = String::new();
    for (name, settings) in cases {
        let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
        let sampled = graph.sample(&mut sampler, &seeds.view());
        let edges: usize = sampled.edges.iter().map(|edges| edges.sources.len()).sum();
        lines += &format!("{name}: {edges} edges, {:016x}\n", digest(&sampled));
    }
    expect![[r#"
        subgraph: 7703 edges, 0358988d8c1473d0
        blocks: 9201 edges, 81f8c8ffb8f444dd
        replace: 8058 edges, 840d1ed96cc8582a
        separate seeds: 7735 edges, fec241ad103f9173
        all neighbors: 7036 edges, 2dd02cfe656d2932
        resample epoch: 7896 edges, ec4604503effb6a2
        resample never: 7973 edges, 4204ad838576a036
        disjoint: 17655 edges, 64d0d6a130d1473e
        disjoint blocks: 19185 edges, c60af8987cd7be11
        temporal: 14584 edges, a02cb13c4680ef8d
        temporal last: 14774 edges, f46d009a6b50b572
        temporal window: 13582 edges, e246a6eab08df893
        bidirectional: 14475 edges, da5eb5a55c23dc6d
        triplet: 11248 edges, cbff3b85640104aa
        strict binary by degree: 11740 edges, 771edb5a5c59c2a2
        disjoint strict triplet by degree: 42834 edges, aa8802bf6fcfedad
    "#]]
    .assert_eq(&lines);
}
