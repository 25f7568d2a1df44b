//! The forecast of a job.

use feedline_data::graph::{GraphLayout, NegativeMode, NegativeWeights};
use feedline_data::pipeline::{
    GraphBatchPlan, GraphBatchSize, NegativeSampling, OperatorKind, Pipeline, SampleNeighbors, Source,
    SubgraphEdges,
};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::super::forecast::{expected_batch, forecast_memory_bytes};
use super::random_graph::RandomGraph;
use super::{model, sampling, summary};

#[test]
fn a_forecast_is_the_model_of_the_seeds_of_one_batch() {
    let graph = RandomGraph::uniform(1_000, 8_000);
    let pipeline = Pipeline::builder("papers").source(Source::graph("g"));
    let pipeline = pipeline.sample_neighbors(64, &[4, 3], &["x"]).build().unwrap();
    let rows = Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]);
    let plan = GraphBatchPlan::new(&pipeline, &rows, &summary(1_000, 8_000)).unwrap();
    let plan = plan.expect("the pipeline samples a graph");
    let relations = [graph.edges()];
    let view = graph.view(&relations);
    let seeds: Vec<u32> = (0..64).collect();
    let forecast =
        |seeds: &[u32], is_cancelled: bool| expected_batch(&view, &plan, &[seeds.to_vec()], &|| is_cancelled);
    let size = forecast(&seeds, false).unwrap().expect("it is not cancelled");
    let inclusion = model(&graph, &seeds, &sampling(64, &[4, 3], GraphLayout::Subgraph));
    assert_eq!(size, plan.size_of(64, &inclusion.expected.counts()));
    assert!(size.nodes > 64 && size.edges > 64 && size.bytes > 64 * size.nodes, "{size:?}");
    assert_eq!(forecast(&seeds, true), Ok(None));
    assert_eq!(
        forecast(&[1_000], false),
        Err("seed 1000 does not exist: its type has 1000 nodes".to_owned())
    );
    assert_eq!(forecast(&[], false), Err("a batch without seeds cannot be modeled".to_owned()));
    assert_eq!(forecast_memory_bytes(&[1_000], &plan), 32_000);
}

#[test]
fn a_forecast_counts_negatives_and_reverse_edges() {
    const LINKS: u32 = 64;
    let graph = RandomGraph::uniform(100_000, 800_000);
    let relations = [graph.edges()];
    let view = graph.view(&relations);
    let ends: [Vec<u32>; 2] = [(0..LINKS).collect(), (LINKS..2 * LINKS).collect()];
    let number = || ColumnType::Scalar(ScalarType::UInt32);
    let rows = Schema::new([("source", number()), ("target", number())]);
    let forecast = |mode: Option<NegativeMode>, subgraph: SubgraphEdges| -> GraphBatchSize {
        let negatives = mode.map(|mode| NegativeSampling {
            mode,
            amount: 3,
            strict: false,
            by: NegativeWeights::Uniform,
        });
        let operator = SampleNeighbors { negatives, subgraph, ..SampleNeighbors::new(LINKS, &[4]) };
        let builder = Pipeline::builder("papers").source(Source::graph("g"));
        let pipeline = builder.operator(OperatorKind::SampleNeighbors(operator)).build().unwrap();
        let plan = GraphBatchPlan::new(&pipeline, &rows, &summary(100_000, 800_000)).unwrap();
        let plan = plan.expect("the pipeline samples a graph");
        expected_batch(&view, &plan, &ends, &|| false).unwrap().expect("it is not cancelled")
    };
    // A link has two seeds, and three negatives add three or six. Collisions are rare in a large graph.
    let plain = forecast(None, SubgraphEdges::Sampled);
    for (mode, times) in [(NegativeMode::Triplet, 5.0 / 2.0), (NegativeMode::Binary, 8.0 / 2.0)] {
        let with_negatives = forecast(Some(mode), SubgraphEdges::Sampled);
        for (with, without) in [(with_negatives.nodes, plain.nodes), (with_negatives.edges, plain.edges)] {
            let ratio = with as f64 / without as f64;
            assert!((ratio / times - 1.0).abs() < 0.1, "{mode:?}: {ratio}");
        }
    }
    let bidirectional = forecast(None, SubgraphEdges::Bidirectional);
    assert_eq!((bidirectional.nodes, bidirectional.edges), (plain.nodes, 2 * plain.edges));
}
