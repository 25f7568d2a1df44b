//! The law of the samples: chi-square tests of about a million draws each, with a fixed seed. The same tests reject samplers
//! with errors that real samplers had.

use super::test_graph::{TestGraph, TestRandom, TestRelation, TestSeeds};
use crate::graph::draws::{DrawScope, DrawStream};
use crate::graph::{
    Fanout, NeighborSampler, Resample, SampledGraph, SamplingSettings, SeedRow, TemporalRule,
};
use crate::random::philox4x32;

/// Chosen before the first run of the tests.
pub(super) const SEED: u64 = 2_026;
/// The normal quantile of 1 - 0.01 / 30. There are 25 statistics in this file that must be accepted, and 5 of negatives.
pub(super) const Z_LIMIT: f64 = 3.403;
/// The number of draws of a test.
pub(super) const DRAWS: u64 = 1_000_000;
/// The number of trees of a batch.
const BATCH_TREES: u64 = 500;
/// The degrees and fanouts of the tests without replacement.
const CASES: [(u32, u32); 4] = [(20, 5), (1_000, 15), (40_000, 10), (1_000_000, 25)];

/// Counts in cells with known expectations.
pub(super) struct Histogram {
    pub(super) counts: Vec<u64>,
    expected: Vec<f64>,
}

impl Histogram {
    pub(super) fn new(expected: Vec<f64>) -> Self {
        Self { counts: vec![0; expected.len()], expected }
    }

    /// Pearson's statistic as a standard normal variable (Wilson and Hilferty, 1931). `scale` is the ratio of the covariances of
    /// independent draws to those of the tested draws.
    pub(super) fn z(&self, scale: f64) -> f64 {
        let cells = || self.counts.iter().zip(&self.expected).filter(|(_, expected)| **expected > 0.0);
        let term = |(count, expected): (&u64, &f64)| (*count as f64 - expected).powi(2) / expected;
        let statistic = cells().map(term).sum::<f64>() * scale;
        let freedom = cells().count() as f64 - 1.0;
        let variance = 2.0 / (9.0 * freedom);
        ((statistic / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
    }
}

/// The two statistics of samples without replacement.
struct DistinctLaw {
    size: u32,
    count: u32,
    /// The number of samples that contain an edge, by ranges of edges.
    inclusion: Histogram,
    /// A random ordered pair of each sample, by ranges of edges.
    pairs: Histogram,
    random: TestRandom,
}

impl DistinctLaw {
    const PAIR_RANGES: u32 = 20;

    /// Creates the expectations for `trees` samples of `count` of `size` edges.
    fn new(size: u32, count: u32, trees: u64) -> Self {
        let bins = size.min(1_000);
        let per_bin = trees as f64 * f64::from(count) / f64::from(bins);
        let range_size = f64::from(size / Self::PAIR_RANGES);
        let pairs_of_edges = f64::from(size) * f64::from(size - 1);
        let pair = |cell: u32| {
            let is_same = cell / Self::PAIR_RANGES == cell % Self::PAIR_RANGES;
            let others = if is_same { range_size - 1.0 } else { range_size };
            trees as f64 * range_size * others / pairs_of_edges
        };
        Self {
            size,
            count,
            inclusion: Histogram::new(vec![per_bin; bins as usize]),
            pairs: Histogram::new((0..Self::PAIR_RANGES.pow(2)).map(pair).collect()),
            random: TestRandom::new(1),
        }
    }

    fn add(&mut self, positions: &[u64]) {
        assert_eq!(positions.len(), self.count as usize);
        let (size, bins) = (u64::from(self.size), self.inclusion.counts.len() as u64);
        for position in positions {
            self.inclusion.counts[(position * bins / size) as usize] += 1;
        }
        let first = self.random.below(u64::from(self.count));
        let second = (first + 1 + self.random.below(u64::from(self.count) - 1)) % u64::from(self.count);
        let ranges = u64::from(Self::PAIR_RANGES);
        let range = |index: u64| positions[index as usize] * ranges / size;
        self.pairs.counts[(range(first) * ranges + range(second)) as usize] += 1;
    }

    fn z(&self) -> [f64; 2] {
        let (size, count) = (f64::from(self.size), f64::from(self.count));
        [self.inclusion.z((size - 1.0) / (size - count)), self.pairs.z(1.0)]
    }
}

/// Samples the neighbors of one node again and again, each time in another tree.
fn sample_star(
    relation: TestRelation,
    settings: SamplingSettings,
    fanout: u32,
    mut visit: impl FnMut(&[u64]),
) {
    let graph = TestGraph { node_counts: vec![relation.sources.len() as u32, 1], relations: vec![relation] };
    let fanouts = vec![vec![Fanout::Limit(fanout)]];
    let settings = SamplingSettings { seed: SEED, disjoint: true, edge_positions: true, fanouts, ..settings };
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    let mut output = SampledGraph::default();
    for batch in 0..DRAWS / u64::from(fanout) / BATCH_TREES {
        let mut seeds = TestSeeds::of_nodes(&[0; BATCH_TREES as usize], 0, batch * BATCH_TREES);
        seeds.seeds.iter_mut().for_each(|seed| seed.node_type = 1);
        graph.sample_into(&mut sampler, &seeds.view(), &mut output);
        for hop in output.edges[0].hops() {
            for (_, range) in hop.edges_by_target() {
                visit(&output.edges[0].positions[range.start as usize..range.end as usize]);
            }
        }
    }
}

/// The number of samples that [`sample_star`] draws.
fn tree_count(fanout: u32) -> u64 {
    DRAWS / u64::from(fanout) / BATCH_TREES * BATCH_TREES
}

#[track_caller]
pub(super) fn assert_accepted(name: &str, z: f64) {
    assert!(z < Z_LIMIT, "{name}: {z:.2} standard deviations");
}

#[test]
fn samples_without_replacement_are_uniform() {
    for (size, count) in CASES {
        let mut law = DistinctLaw::new(size, count, tree_count(count));
        sample_star(TestRelation::star(size), SamplingSettings::default(), count, |positions| {
            law.add(positions);
        });
        let [inclusion, pairs] = law.z();
        assert_accepted(&format!("inclusion of {count} of {size}"), inclusion);
        assert_accepted(&format!("pairs of {count} of {size}"), pairs);
    }
}

#[test]
fn samples_with_replacement_are_uniform() {
    let (size, count) = (20_u64, 5);
    let trees = tree_count(count) as f64;
    let mut single = Histogram::new(vec![trees * f64::from(count) / 20.0; 20]);
    let mut pairs = Histogram::new(vec![trees / 400.0; 400]);
    let settings = SamplingSettings { replace: true, ..SamplingSettings::default() };
    sample_star(TestRelation::star(20), settings, count, |positions| {
        positions.iter().for_each(|position| single.counts[*position as usize] += 1);
        pairs.counts[(positions[0] * size + positions[1]) as usize] += 1;
    });
    assert_accepted("single edges", single.z(1.0));
    assert_accepted("pairs", pairs.z(1.0));
}

#[test]
fn temporal_samples_are_uniform_in_the_window() {
    // Edges at the times -50 to 49. The time of the rows is 5, so the window contains the times -34 to 5.
    let mut relation = TestRelation::star(100);
    relation.times = Some((-50..50).collect());
    let rule = TemporalRule { window: Some(40), ..TemporalRule::default() };
    let settings = SamplingSettings { temporal: Some(rule), ..SamplingSettings::default() };
    let mut law = DistinctLaw::new(40, 4, tree_count(4));
    sample_star(relation, settings, 4, |positions| {
        let in_window: Vec<u64> = positions.iter().map(|position| position - 16).collect();
        law.add(&in_window);
    });
    let [inclusion, pairs] = law.z();
    assert_accepted("inclusion", inclusion);
    assert_accepted("pairs", pairs);
}

const WEIGHTS: [u32; 6] = [1, 2, 3, 4, 10, 20];

/// The expected numbers of ordered pairs of successive sampling from [`WEIGHTS`].
fn weighted_pairs(trees: u64) -> Histogram {
    let mass: f64 = WEIGHTS.iter().map(|weight| f64::from(*weight)).sum();
    let pair = |cell: usize| {
        let (first, second) = (cell / WEIGHTS.len(), cell % WEIGHTS.len());
        let (a, b) = (f64::from(WEIGHTS[first]), f64::from(WEIGHTS[second]));
        if first == second { 0.0 } else { trees as f64 * a / mass * b / (mass - a) }
    };
    Histogram::new((0..WEIGHTS.len().pow(2)).map(pair).collect())
}

fn sums(weights: impl Iterator<Item = u32>) -> Vec<u32> {
    let add = |sum: &mut u32, weight: u32| {
        *sum += weight;
        Some(*sum)
    };
    weights.scan(0, add).collect()
}

#[test]
fn weighted_samples_follow_successive_sampling() {
    let mut relation = TestRelation::star(6);
    relation.weights = Some(sums(WEIGHTS.into_iter()));
    let mut pairs = weighted_pairs(tree_count(2));
    sample_star(relation, SamplingSettings::default(), 2, |positions| {
        pairs.counts[positions[0] as usize * WEIGHTS.len() + positions[1] as usize] += 1;
    });
    assert_accepted("ordered pairs", pairs.z(1.0));

    let weight = |index: u32| 1_000 + index % 7 * 5_000;
    let mass: f64 = (0..1_000).map(|index| f64::from(weight(index))).sum();
    let mut relation = TestRelation::star(1_000);
    relation.weights = Some(sums((0..1_000).map(weight)));
    let expected = (0..1_000).map(|index| DRAWS as f64 * f64::from(weight(index)) / mass).collect();
    let mut single = Histogram::new(expected);
    let settings = SamplingSettings { replace: true, ..SamplingSettings::default() };
    sample_star(relation, settings, 1, |positions| single.counts[positions[0] as usize] += 1);
    assert_accepted("single edges of a large node", single.z(1.0));
}

/// The inputs of a draw.
#[derive(Clone, Copy, Default)]
struct DrawInputs {
    seed: u64,
    operator: u32,
    epoch: u32,
    position: u64,
    slot: u16,
    node: u32,
    relation: u16,
    hop: u8,
}

impl DrawInputs {
    /// The first draw below 16.
    fn draw(self) -> usize {
        let scope = DrawScope { seed: SEED ^ self.seed, operator: self.operator, resample: Resample::Batch };
        let row = SeedRow { epoch: self.epoch, position: self.position, time: 0 };
        let key = scope.key(&row, Some(self.slot));
        DrawStream::new(key, self.node, self.relation, self.hop).below(16) as usize
    }
}

/// Changes one input of a draw.
type Change = fn(&mut DrawInputs);

#[test]
fn draws_with_adjacent_inputs_are_independent() {
    let changes: [(&str, Change); 8] = [
        ("seed", |inputs| inputs.seed ^= 1),
        ("operator", |inputs| inputs.operator += 1),
        ("epoch", |inputs| inputs.epoch += 1),
        ("position", |inputs| inputs.position += 1),
        ("slot", |inputs| inputs.slot += 1),
        ("node", |inputs| inputs.node += 1),
        ("relation", |inputs| inputs.relation += 1),
        ("hop", |inputs| inputs.hop += 1),
    ];
    let pairs_of_draws = 200_000_u32;
    for (name, change) in changes {
        let mut pairs = Histogram::new(vec![f64::from(pairs_of_draws) / 256.0; 256]);
        for index in 0..pairs_of_draws {
            // Every second position and node, so that no draw is in two pairs.
            let inputs = DrawInputs {
                position: 2 * u64::from(index / 1_000),
                node: 2 * (index % 1_000),
                ..DrawInputs::default()
            };
            let mut changed = inputs;
            change(&mut changed);
            pairs.counts[inputs.draw() * 16 + changed.draw()] += 1;
        }
        assert_accepted(name, pairs.z(1.0));
    }
}

/// Words for samplers with errors.
pub(super) struct Words {
    words: std::vec::IntoIter<u32>,
    block: u32,
}

impl Words {
    pub(super) fn new() -> Self {
        Self { words: Vec::new().into_iter(), block: 0 }
    }

    fn next_word(&mut self) -> u32 {
        if let Some(word) = self.words.next() {
            return word;
        }
        self.block += 1;
        self.words = philox4x32([0, 0, 0, self.block], [SEED as u32, 1]).to_vec().into_iter();
        self.words.next().expect("a block has four words")
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_word()) * u64::from(bound)) >> 32) as u32
    }
}

/// Floyd's algorithm with another function for `below`.
fn floyd(size: u32, count: u32, mut below: impl FnMut(u32) -> u32) -> Vec<u64> {
    let mut chosen = Vec::new();
    for last in size - count..size {
        let number = below(last + 1);
        chosen.push(u64::from(if chosen.contains(&u64::from(number)) { last } else { number }));
    }
    chosen
}

/// The statistics of a sampler.
fn distinct_z(size: u32, count: u32, mut sample: impl FnMut() -> Vec<u64>) -> [f64; 2] {
    let trees = tree_count(count);
    let mut law = DistinctLaw::new(size, count, trees);
    (0..trees).for_each(|_| law.add(&sample()));
    law.z()
}

#[test]
fn the_tests_accept_a_simple_correct_sampler() {
    let mut words = Words::new();
    let [inclusion, pairs] = distinct_z(20, 5, || floyd(20, 5, |bound| words.below(bound)));
    assert_accepted("inclusion", inclusion);
    assert_accepted("pairs", pairs);
}

#[test]
fn the_tests_reject_biased_samplers() {
    let mut words = Words::new();
    // The remainder of 16 random bits, as pyg-lib draws.
    let z = distinct_z(40_000, 10, || floyd(40_000, 10, |bound| (words.next_word() & 0xFFFF) % bound));
    assert!(z[0] > 2.0 * Z_LIMIT, "16 bits: {z:?}");
    // The last element is excluded, as by `% j` instead of `% (j + 1)`.
    let z = distinct_z(20, 5, || floyd(20, 5, |bound| words.below(bound - 1)));
    assert!(z[0] > 2.0 * Z_LIMIT, "off by one: {z:?}");
    // The next edge replaces an edge that is already part of the sample. Each edge is as likely as the others, but pairs are not.
    let z = distinct_z(20, 5, || {
        let mut chosen: Vec<u64> = Vec::new();
        while chosen.len() < 5 {
            let mut number = u64::from(words.below(20));
            while chosen.contains(&number) {
                number = (number + 1) % 20;
            }
            chosen.push(number);
        }
        chosen
    });
    assert!(z[0] < Z_LIMIT && z[1] > 2.0 * Z_LIMIT, "the next edge: {z:?}");
    // Consecutive edges from a random start.
    let z = distinct_z(1_000, 15, || {
        let start = words.below(1_000);
        (0..15).map(|index| u64::from((start + index) % 1_000)).collect()
    });
    assert!(z[1] > 2.0 * Z_LIMIT, "consecutive edges: {z:?}");
}

#[test]
fn the_tests_reject_weighted_samplers_that_ignore_removed_edges() {
    let mut words = Words::new();
    let sums = sums(WEIGHTS.into_iter());
    let mut draw = || {
        let point = words.below(40);
        sums.partition_point(|sum| *sum <= point)
    };
    let mut pairs = weighted_pairs(tree_count(2));
    for _ in 0..tree_count(2) {
        let (first, mut second) = (draw(), draw());
        if second == first {
            second = (first + 1) % WEIGHTS.len();
        }
        pairs.counts[first * WEIGHTS.len() + second] += 1;
    }
    assert!(pairs.z(1.0) > 2.0 * Z_LIMIT);
}
