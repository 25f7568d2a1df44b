//! The law of negatives: chi-square tests of a million draws each, with a fixed seed. The same tests reject samplers with errors.

use super::law::{DRAWS, Histogram, SEED, Words, Z_LIMIT, assert_accepted};
use super::test_graph::{TestGraph, TestRelation, TestSeeds};
use crate::graph::{
    Fanout, NegativeMode, NegativeRule, NegativeWeights, NeighborSampler, SampledGraph, SamplingSettings,
    Seed, SeedRow,
};

/// The number of links of a batch.
const LINKS: u32 = 500;
/// The number of negatives of a link.
const AMOUNT: u32 = 100;
/// The number of ranges of nodes of the test of pairs.
const RANGES: u32 = 20;
/// The numbers of sources and targets of the strict test.
const STRICT_NODES: [u32; 2] = [20, 30];

const UNIFORM: NegativeRule = NegativeRule {
    mode: NegativeMode::Triplet,
    amount: AMOUNT,
    strict: false,
    by: NegativeWeights::Uniform,
    relation: 0,
    reverse: 1,
};

/// A relation with these sources of each target.
fn relation(types: (u16, u16), sources: &[Vec<u32>]) -> TestRelation {
    let ends = sources.iter().scan(0_u64, |end, row| {
        *end += row.len() as u64;
        Some(*end)
    });
    TestRelation {
        source_type: types.0,
        target_type: types.1,
        offsets: std::iter::once(0).chain(ends).collect(),
        sources: sources.concat(),
        ..TestRelation::star(0)
    }
}

/// A graph with a relation from type 0 to type 1, and one in the other direction.
fn graph(forward: &[Vec<u32>], backward: &[Vec<u32>]) -> TestGraph {
    TestGraph {
        node_counts: vec![backward.len() as u32, forward.len() as u32],
        relations: vec![relation((0, 1), forward), relation((1, 0), backward)],
    }
}

/// Draws negatives of the link from node 0 to node 0 again and again, each time in another row, and visits those of each row.
fn draw_negatives(graph: &TestGraph, rule: NegativeRule, mut visit: impl FnMut(&[u32])) {
    let settings = SamplingSettings {
        seed: SEED,
        merge_seeds: true,
        negatives: Some(rule),
        fanouts: vec![vec![Fanout::Limit(0); 2]],
        ..SamplingSettings::default()
    };
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    let mut output = SampledGraph::default();
    for batch in 0..DRAWS / u64::from(LINKS * AMOUNT) {
        let mut seeds = TestSeeds::default();
        for row in 0..LINKS {
            let position = batch * u64::from(LINKS) + u64::from(row);
            seeds.rows.push(SeedRow { epoch: 0, position, time: 0 });
            for node_type in [0, 1] {
                seeds.seeds.push(Seed { node_type, slot: node_type, row, node: 0 });
            }
        }
        graph.sample_into(&mut sampler, &seeds.view(), &mut output);
        for locals in output.seed_locals.chunks(rule.seeds_per_link() as usize) {
            let node = |(index, local): (usize, &u32)| {
                let node_type = if rule.mode == NegativeMode::Binary { index % 2 } else { 1 };
                output.nodes[node_type].ids[*local as usize]
            };
            let nodes: Vec<u32> = locals[2..].iter().enumerate().map(node).collect();
            visit(&nodes);
        }
    }
}

/// The statistics of uniform negatives: single nodes, and pairs of consecutive negatives.
struct UniformLaw {
    nodes: u32,
    single: Histogram,
    pairs: Histogram,
}

impl UniformLaw {
    fn new(nodes: u32) -> Self {
        Self {
            nodes,
            single: Histogram::new(vec![DRAWS as f64 / f64::from(nodes); nodes as usize]),
            pairs: Histogram::new(vec![
                DRAWS as f64 / 2.0 / f64::from(RANGES * RANGES);
                (RANGES * RANGES) as usize
            ]),
        }
    }

    fn add(&mut self, negatives: &[u32]) {
        negatives.iter().for_each(|node| self.single.counts[*node as usize] += 1);
        let range = |node: u32| node / (self.nodes / RANGES);
        for pair in negatives.chunks(2) {
            self.pairs.counts[(range(pair[0]) * RANGES + range(pair[1])) as usize] += 1;
        }
    }
}

#[test]
fn negatives_are_uniform_and_independent() {
    let graph = graph(&vec![Vec::new(); 1_000], &[Vec::new()]);
    let mut law = UniformLaw::new(1_000);
    draw_negatives(&graph, UNIFORM, |negatives| law.add(negatives));
    assert_accepted("single nodes", law.single.z(1.0));
    assert_accepted("pairs", law.pairs.z(1.0));
}

/// The number of edges of a target.
fn degree(target: u32) -> u32 {
    1 + target * target
}

/// The expected numbers of nodes that are drawn by the power 3/4 of their degrees.
fn expected_by_degree(nodes: u32) -> Vec<f64> {
    let weights: Vec<f64> = (0..nodes).map(|node| f64::from(degree(node)).powf(0.75)).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| DRAWS as f64 * weight / sum).collect()
}

fn sources_by_degree(nodes: u32) -> Vec<Vec<u32>> {
    (0..nodes).map(|target| vec![0; degree(target) as usize]).collect()
}

#[test]
fn negatives_by_degree_follow_its_power() {
    let graph = graph(&sources_by_degree(50), &[Vec::new()]);
    let mut law = Histogram::new(expected_by_degree(50));
    let rule = NegativeRule { by: NegativeWeights::Degree, ..UNIFORM };
    draw_negatives(&graph, rule, |negatives| {
        negatives.iter().for_each(|node| law.counts[*node as usize] += 1);
    });
    assert_accepted("targets by degree", law.z(1.0));
}

#[test]
fn the_ends_of_binary_negatives_are_independent() {
    let graph = graph(&sources_by_degree(12), &sources_by_degree(9));
    let (sources, targets) = (expected_by_degree(9), expected_by_degree(12));
    let pairs =
        sources.iter().flat_map(|source| targets.iter().map(move |target| source * target / DRAWS as f64));
    let mut law = Histogram::new(pairs.collect());
    let rule = NegativeRule { by: NegativeWeights::Degree, mode: NegativeMode::Binary, ..UNIFORM };
    draw_negatives(&graph, rule, |negatives| {
        negatives.chunks(2).for_each(|pair| law.counts[(pair[0] * 12 + pair[1]) as usize] += 1);
    });
    assert_accepted("pairs by degree", law.z(1.0));
}

/// Whether the strict test has an edge. It has edges between two fifths of the pairs.
fn is_edge(source: u32, target: u32) -> bool {
    (source * 7 + target * 3) % 5 < 2
}

/// The pairs of the strict test, which are uniform among those without an edge.
fn strict_law() -> Histogram {
    let [sources, targets] = STRICT_NODES;
    let pairs = (0..sources * targets).map(|pair| is_edge(pair / targets, pair % targets));
    let free = pairs.clone().filter(|is_edge| !is_edge).count() as f64;
    Histogram::new(pairs.map(|is_edge| if is_edge { 0.0 } else { DRAWS as f64 / free }).collect())
}

#[test]
fn strict_negatives_are_uniform_among_the_pairs_without_an_edge() {
    let [sources, targets] = STRICT_NODES;
    let row = |target: u32| (0..sources).filter(|source| is_edge(*source, target)).collect();
    let forward: Vec<Vec<u32>> = (0..targets).map(row).collect();
    let graph = graph(&forward, &vec![Vec::new(); sources as usize]);
    let rule = NegativeRule { strict: true, mode: NegativeMode::Binary, ..UNIFORM };
    let mut law = strict_law();
    draw_negatives(&graph, rule, |negatives| {
        for pair in negatives.chunks(2) {
            assert!(!is_edge(pair[0], pair[1]), "{pair:?}");
            law.counts[(pair[0] * targets + pair[1]) as usize] += 1;
        }
    });
    assert_accepted("strict pairs", law.z(1.0));
}

#[test]
fn the_tests_reject_biased_negatives() {
    let mut words = Words::new();
    // The probability is proportional to the degree.
    let targets: Vec<u32> = (0..50).flat_map(|target| vec![target; degree(target) as usize]).collect();
    let mut law = Histogram::new(expected_by_degree(50));
    (0..DRAWS).for_each(|_| law.counts[targets[words.below(targets.len() as u32) as usize] as usize] += 1);
    assert!(law.z(1.0) > 2.0 * Z_LIMIT, "by degree");
    // A pair with an edge is replaced by the next target instead of another draw.
    let [sources, targets] = STRICT_NODES;
    let mut law = strict_law();
    for _ in 0..DRAWS {
        let (source, mut target) = (words.below(sources), words.below(targets));
        while is_edge(source, target) {
            target = (target + 1) % targets;
        }
        law.counts[(source * targets + target) as usize] += 1;
    }
    assert!(law.z(1.0) > 2.0 * Z_LIMIT, "the next target");
    // The second negative of a link is near the first.
    let mut law = UniformLaw::new(1_000);
    for _ in 0..DRAWS / 2 {
        let first = words.below(1_000);
        law.add(&[first, (first + words.below(200)) % 1_000]);
    }
    assert!(law.single.z(1.0) < Z_LIMIT && law.pairs.z(1.0) > 2.0 * Z_LIMIT, "near the first");
}
