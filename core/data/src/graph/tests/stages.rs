//! The stages that a meter receives.

use crate::graph::{
    BatchSeeds, Fanout, GraphView, NeighborSampler, RelationView, SampledGraph, SamplerMeter,
    SamplingSettings, Seed, SeedRow,
};

#[derive(Default)]
struct StageNames(Vec<&'static str>);

impl SamplerMeter for StageNames {
    fn end_draws(&mut self) {
        self.0.push("draws");
    }

    fn end_map(&mut self) {
        self.0.push("map");
    }
}

#[test]
fn each_hop_draws_before_it_maps() {
    let relation = RelationView {
        source_type: 0,
        target_type: 0,
        offsets: &[0, 1, 2],
        sources: &[1, 0],
        weights: None,
        times: None,
    };
    let graph = GraphView { node_counts: &[2], relations: &[relation] };
    let fanouts = vec![vec![Fanout::Limit(1)]; 2];
    let settings = SamplingSettings { fanouts, ..SamplingSettings::default() };
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    let (rows, seeds) = ([SeedRow::default()], [Seed::default()]);
    let seeds = BatchSeeds { rows: &rows, seeds: &seeds, excluded: &[] };
    let (mut stages, mut measured, mut plain) =
        (StageNames::default(), SampledGraph::default(), SampledGraph::default());
    sampler.sample_measured(&graph, &seeds, &mut measured, &mut stages).expect("the graph is valid");
    sampler.sample(&graph, &seeds, &mut plain).expect("the graph is valid");
    assert_eq!(stages.0, ["draws", "map", "draws", "map"]);
    assert_eq!(measured, plain);
}
