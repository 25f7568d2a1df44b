//! Random graphs, seeds and settings for tests.

use crate::graph::{
    BatchSeeds, Fanout, GraphLayout, GraphView, NeighborSampler, RelationView, Resample, SampledGraph,
    SamplingSettings, Seed, SeedEdge, SeedRow, TemporalRule, TemporalStrategy,
};
use crate::random::mix64;

/// A sequence of random numbers.
pub(super) struct TestRandom {
    key: u64,
    count: u64,
}

impl TestRandom {
    pub(super) fn new(key: u64) -> Self {
        Self { key: mix64(key), count: 0 }
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.count += 1;
        let word = mix64(self.key ^ mix64(self.count));
        ((u128::from(word) * u128::from(bound)) >> 64) as u64
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    pub(super) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(super) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }
}

/// A relation that owns its arrays.
#[derive(Clone)]
pub(super) struct TestRelation {
    pub(super) source_type: u16,
    pub(super) target_type: u16,
    pub(super) offsets: Vec<u64>,
    pub(super) sources: Vec<u32>,
    pub(super) weights: Option<Vec<u32>>,
    pub(super) times: Option<Vec<i64>>,
}

impl TestRelation {
    /// Creates a relation in which each target has at most `max_degree` edges.
    pub(super) fn random(
        random: &mut TestRandom,
        node_counts: &[u32],
        types: (u16, u16),
        max_degree: u64,
        (weighted, timed): (bool, bool),
    ) -> Self {
        let (source_type, target_type) = types;
        let source_count = u64::from(node_counts[usize::from(source_type)]);
        let (mut offsets, mut sources, mut weights, mut times) =
            (vec![0], Vec::new(), Vec::new(), Vec::new());
        for _ in 0..node_counts[usize::from(target_type)] {
            let degree = random.below(max_degree + 1);
            let mut edges: Vec<(i64, u32)> = (0..degree)
                .map(|_| (if timed { random.below(10) as i64 } else { 0 }, random.below(source_count) as u32))
                .collect();
            edges.sort_unstable();
            let mut sum = 0;
            for (time, source) in edges {
                sum += random.below(5) as u32 * random.below(5) as u32;
                sources.push(source);
                times.push(time);
                weights.push(sum);
            }
            offsets.push(sources.len() as u64);
        }
        let (weights, times) = (weighted.then_some(weights), timed.then_some(times));
        Self { source_type, target_type, offsets, sources, weights, times }
    }

    /// Creates a relation with one target, whose edges come from all sources in order.
    pub(super) fn star(size: u32) -> Self {
        Self {
            source_type: 0,
            target_type: 1,
            offsets: vec![0, u64::from(size)],
            sources: (0..size).collect(),
            weights: None,
            times: None,
        }
    }

    pub(super) fn view(&self) -> RelationView<'_> {
        RelationView {
            source_type: self.source_type,
            target_type: self.target_type,
            offsets: &self.offsets,
            sources: &self.sources,
            weights: self.weights.as_deref(),
            times: self.times.as_deref(),
        }
    }
}

/// A graph that owns its arrays.
pub(super) struct TestGraph {
    pub(super) node_counts: Vec<u32>,
    pub(super) relations: Vec<TestRelation>,
}

impl TestGraph {
    /// Samples with a sampler that may have sampled before.
    pub(super) fn sample(&self, sampler: &mut NeighborSampler, seeds: &BatchSeeds<'_>) -> SampledGraph {
        let mut output = SampledGraph::default();
        self.sample_into(sampler, seeds, &mut output);
        output
    }

    pub(super) fn sample_into(
        &self,
        sampler: &mut NeighborSampler,
        seeds: &BatchSeeds<'_>,
        output: &mut SampledGraph,
    ) {
        let relations: Vec<RelationView<'_>> = self.relations.iter().map(TestRelation::view).collect();
        let graph = GraphView { node_counts: &self.node_counts, relations: &relations };
        sampler.sample(&graph, seeds, output).expect("the graph and the seeds are valid");
    }
}

/// Seeds that own their arrays.
#[derive(Default)]
pub(super) struct TestSeeds {
    pub(super) rows: Vec<SeedRow>,
    pub(super) seeds: Vec<Seed>,
    pub(super) excluded: Vec<SeedEdge>,
}

impl TestSeeds {
    pub(super) fn view(&self) -> BatchSeeds<'_> {
        BatchSeeds { rows: &self.rows, seeds: &self.seeds, excluded: &self.excluded }
    }

    /// Creates rows with one node each, at consecutive positions.
    pub(super) fn of_nodes(nodes: &[u32], epoch: u32, first_position: u64) -> Self {
        let row = |index: usize| SeedRow { epoch, position: first_position + index as u64, time: 5 };
        let seed = |(row, node): (u32, &u32)| Seed { node_type: 0, slot: 0, row, node: *node };
        Self {
            rows: (0..nodes.len()).map(row).collect(),
            seeds: (0..).zip(nodes).map(seed).collect(),
            excluded: Vec::new(),
        }
    }
}

/// A graph with settings and seeds.
pub(super) struct TestCase {
    pub(super) graph: TestGraph,
    pub(super) settings: SamplingSettings,
    pub(super) seeds: TestSeeds,
}

impl TestCase {
    /// Creates a small random case.
    pub(super) fn random(key: u64) -> Self {
        let random = &mut TestRandom::new(key);
        let node_counts: Vec<u32> = (0..1 + random.below(3)).map(|_| 1 + random.below(12) as u32).collect();
        let relations = (0..1 + random.below(4)).map(|_| {
            let types = (random.index(node_counts.len()) as u16, random.index(node_counts.len()) as u16);
            let max_degree = random.one_of(&[0, 2, 5, 12]);
            let kind = (random.flag(), random.flag());
            TestRelation::random(random, &node_counts, types, max_degree, kind)
        });
        let graph = TestGraph { relations: relations.collect(), node_counts };
        let settings = random_settings(random, graph.relations.len());
        let seeds = random_seeds(random, &graph);
        Self { graph, settings, seeds }
    }

    pub(super) fn sampler(&self) -> NeighborSampler {
        NeighborSampler::new(self.settings.clone()).expect("the settings are valid")
    }
}

fn random_settings(random: &mut TestRandom, relations: usize) -> SamplingSettings {
    let rules = [
        TemporalRule { strategy: TemporalStrategy::Uniform, window: None },
        TemporalRule { strategy: TemporalStrategy::Uniform, window: Some(3) },
        TemporalRule { strategy: TemporalStrategy::Last, window: None },
        TemporalRule { strategy: TemporalStrategy::Last, window: Some(u64::MAX) },
    ];
    let temporal = random.flag().then(|| random.one_of(&rules));
    let fanout = |random: &mut TestRandom| match random.below(8) {
        0 => Fanout::All,
        limit => Fanout::Limit(limit as u32 - 1),
    };
    let hops = 1 + random.below(3);
    SamplingSettings {
        seed: random.below(u64::MAX),
        operator: random.below(4) as u32,
        resample: random.one_of(&[Resample::Batch, Resample::Epoch, Resample::Never]),
        layout: random.one_of(&[GraphLayout::Subgraph, GraphLayout::Blocks]),
        replace: random.flag(),
        disjoint: temporal.is_some() || random.flag(),
        temporal,
        merge_seeds: random.flag(),
        edge_positions: true,
        fanouts: (0..hops).map(|_| (0..relations).map(|_| fanout(random)).collect()).collect(),
        ..SamplingSettings::default()
    }
}

fn random_seeds(random: &mut TestRandom, graph: &TestGraph) -> TestSeeds {
    let mut seeds = TestSeeds::default();
    let (epoch, first_position) = (random.below(3) as u32, random.below(1 << 40));
    for row in 0..random.below(6) {
        let time = random.below(12) as i64;
        seeds.rows.push(SeedRow { epoch, position: first_position + row, time });
        for slot in 0..random.below(3) as u16 {
            let node_type = random.index(graph.node_counts.len());
            let node = random.below(u64::from(graph.node_counts[node_type])) as u32;
            seeds.seeds.push(Seed { node_type: node_type as u16, slot, row: row as u32, node });
        }
        for _ in 0..random.below(4) {
            let relation = random.index(graph.relations.len());
            let edges = &graph.relations[relation];
            let target = random.below(edges.offsets.len() as u64 - 1) as u32;
            let source = match edges.sources.len() {
                0 => 0,
                count => edges.sources[random.index(count)],
            };
            seeds.excluded.push(SeedEdge { relation: relation as u16, row: row as u32, source, target });
        }
    }
    seeds
}
