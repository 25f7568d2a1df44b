//! Measures neighbor sampling on one thread, and prints the time per sampled edge:
//! `cargo bench --workspace --bench neighbor_sampler`.
//!
//! The time includes the draws, the reads of the topology and the map from nodes to local ids. The two cases with one hop differ
//! only in the number of source nodes. The map of 1,024 nodes is in the processor's cache, so their difference is the time of the
//! cache misses of the map.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use feedline_data::graph::{
    BatchSeeds, Fanout, GraphLayout, GraphView, NeighborSampler, RelationView, SampledGraph,
    SamplingSettings, Seed, SeedRow,
};
use feedline_data::random::mix64;

/// The number of nodes is a power of two.
const SCALE: u32 = 20;
const NODES: u32 = 1 << SCALE;
/// The number of seeds of a batch.
const SEEDS: u32 = 1_024;
/// The ends of the first three quadrants of R-MAT, whose probabilities are 0.57, 0.19 and 0.19, as numbers of 16 bits.
const QUADRANT_ENDS: [u64; 3] = [37_356, 49_807, 62_259];

/// Edges by target.
struct BenchGraph {
    offsets: Vec<u64>,
    sources: Vec<u32>,
}

impl BenchGraph {
    /// Creates a graph whose edges are a function of their number: a source and a target below [`NODES`].
    fn new(edges: u64, edge: impl Fn(u64) -> [u32; 2]) -> Self {
        let mut offsets = vec![0_u64; NODES as usize + 1];
        for number in 0..edges {
            offsets[edge(number)[1] as usize + 1] += 1;
        }
        for node in 0..NODES as usize {
            offsets[node + 1] += offsets[node];
        }
        let mut next = offsets.clone();
        let mut sources = vec![0; edges as usize];
        for number in 0..edges {
            let [source, target] = edge(number);
            let place = &mut next[target as usize];
            sources[*place as usize] = source;
            *place += 1;
        }
        for ends in offsets.windows(2) {
            sources[ends[0] as usize..ends[1] as usize].sort_unstable();
        }
        Self { offsets, sources }
    }

    /// A relation whose targets have the type 0.
    fn relation(&self, source_type: u16) -> RelationView<'_> {
        let (offsets, sources) = (&self.offsets, &self.sources);
        RelationView { source_type, target_type: 0, offsets, sources, weights: None, times: None }
    }
}

fn uniform_edge(number: u64) -> [u32; 2] {
    let word = mix64(number);
    [word as u32 % NODES, (word >> 32) as u32 % NODES]
}

fn rmat_edge(number: u64) -> [u32; 2] {
    let (mut edge, mut word) = ([0_u32; 2], 0);
    for level in 0..SCALE {
        word = if level % 4 == 0 { mix64(number << 8 | u64::from(level)) } else { word >> 16 };
        let quadrant = QUADRANT_ENDS.partition_point(|end| *end <= word & 0xFFFF) as u32;
        edge = [edge[0] << 1 | quadrant >> 1, edge[1] << 1 | quadrant & 1];
    }
    edge
}

/// The time and the size of all samples of a case.
#[derive(Default)]
struct SampleTotals {
    time: Duration,
    batches: u64,
    nodes: usize,
    edges: usize,
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    graph: &GraphView<'_>,
    seeds: u32,
    settings: SamplingSettings,
) {
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    let (mut sampled, mut totals) = (SampledGraph::default(), SampleTotals::default());
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|batches| {
            let start = totals.time;
            for _ in 0..batches {
                let position = totals.batches * u64::from(seeds);
                let rows: Vec<SeedRow> = (0..u64::from(seeds))
                    .map(|row| SeedRow { epoch: 0, position: position + row, time: 0 })
                    .collect();
                let nodes: Vec<Seed> = (0..seeds)
                    .map(|row| {
                        let node = mix64(!(position + u64::from(row))) as u32 % NODES;
                        Seed { node_type: 0, slot: 0, row, node }
                    })
                    .collect();
                let seeds = BatchSeeds { rows: &rows, seeds: &nodes, excluded: &[] };
                let begin = Instant::now();
                sampler.sample(graph, &seeds, &mut sampled).expect("the graph is valid");
                totals.time += begin.elapsed();
                totals.batches += 1;
                totals.nodes += sampled.nodes.iter().map(|nodes| nodes.ids.len()).sum::<usize>();
                totals.edges += sampled.edges.iter().map(|edges| edges.sources.len()).sum::<usize>();
                black_box(&mut sampled);
            }
            totals.time - start
        });
    });
    let per_batch = |count: usize| count as f64 / totals.batches.max(1) as f64;
    println!(
        "{name}: {:.1} ns per edge, {:.0} edges and {:.0} nodes per batch",
        totals.time.as_nanos() as f64 / totals.edges.max(1) as f64,
        per_batch(totals.edges),
        per_batch(totals.nodes)
    );
}

fn neighbor_sampler(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("neighbor sampler");
    group.sample_size(10);
    let hops = |layout: GraphLayout| SamplingSettings {
        layout,
        fanouts: [15, 10, 5].map(|limit| vec![Fanout::Limit(limit)]).to_vec(),
        ..SamplingSettings::default()
    };
    let rmat = BenchGraph::new(u64::from(NODES) * 32, rmat_edge);
    let uniform = BenchGraph::new(u64::from(NODES) * 20, uniform_edge);
    for (name, graph) in [("R-MAT", &rmat), ("uniform", &uniform)] {
        let relations = [graph.relation(0)];
        let view = GraphView { node_counts: &[NODES], relations: &relations };
        for (layout_name, layout) in [("subgraph", GraphLayout::Subgraph), ("blocks", GraphLayout::Blocks)] {
            measure(&mut group, &format!("{name}, {layout_name}"), &view, SEEDS, hops(layout));
        }
        let disjoint = SamplingSettings { disjoint: true, ..hops(GraphLayout::Subgraph) };
        measure(&mut group, &format!("{name}, disjoint"), &view, SEEDS, disjoint);
        let reverse = SamplingSettings { reverses: vec![Some(0)], ..hops(GraphLayout::Subgraph) };
        measure(&mut group, &format!("{name}, bidirectional"), &view, SEEDS, reverse);
        let all = SamplingSettings { fanouts: vec![vec![Fanout::All]], ..SamplingSettings::default() };
        measure(&mut group, &format!("{name}, all neighbors"), &view, SEEDS, all);
    }
    let few_sources = BenchGraph {
        offsets: uniform.offsets.clone(),
        sources: uniform.sources.iter().map(|source| source % 1_024).collect(),
    };
    let one_hop = SamplingSettings { fanouts: vec![vec![Fanout::Limit(10)]], ..SamplingSettings::default() };
    for (name, graph, sources) in
        [("one hop, 2^20 sources", &uniform, NODES), ("one hop, 2^10 sources", &few_sources, 1_024)]
    {
        let relations = [graph.relation(1)];
        let view = GraphView { node_counts: &[NODES, sources], relations: &relations };
        measure(&mut group, name, &view, 64 * SEEDS, one_hop.clone());
    }
    group.finish();
}

criterion_group!(benches, neighbor_sampler);
criterion_main!(benches);
