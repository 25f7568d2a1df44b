//! Jobs that sample graphs: their models before the first batch, and the time to load a graph.

use std::sync::Arc;

use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::GraphStats;
use feedline_data::pipeline::{GraphBatchSize, Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::super::*;
use super::{JOB, facts, samples};
use crate::graph::tests::summary;
use crate::plan::{NoDeadline, Plan, solve};

/// A job with a million rows per pass. The graph takes 40 s to load.
fn graph_job(passes_left: f64) -> JobProperties {
    let builder = Pipeline::builder("papers").source(Source::graph("g"));
    let pipeline = builder.sample_neighbors(100, &[10, 5], &["x"]).build().unwrap();
    let dataset = DatasetSummary {
        rows: 1_000_000,
        schema: Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]),
        graph: Some(Box::new(summary(1_000_000, 10_000_000_000))),
        ..facts().dataset
    };
    JobProperties { pipeline, dataset, passes_left, ..facts() }
}

/// Reports of two workers that have computed no rows.
fn before_first_rows(passes_left: f64) -> Samples {
    let mut samples = samples(1, &[JOB]);
    samples.consumers.clear();
    samples.jobs = vec![graph_job(passes_left)];
    samples.workers[0].jobs.clear();
    samples.workers.push(WorkerReportSample { worker: WorkerId(2), ..samples.workers[0].clone() });
    samples
}

fn problem(samples: &Samples) -> Problem {
    let mut observer = Observer::default();
    observer.push(1_000, samples);
    assert_eq!(observer.model(JOB), None, "nothing is measured");
    observer.problem(PlannerSettings::default(), CachePolicy::Never)
}

#[test]
fn a_job_that_samples_a_graph_is_planned_before_its_first_rows() {
    let problem = problem(&before_first_rows(1.0));
    let [job] = problem.jobs.as_slice() else { panic!("{:?}", problem.jobs) };
    // Of 100 seeds, there are 1,000 and 5,000 edges, and as many nodes.
    let bytes = 6_100 * (4 + 64) + 3 * 4 + 1_101 * 4 + 6_000 * 4 + 2 * 4;
    assert_eq!(job.delivered_bytes_per_row, f64::from(bytes) / 100.0);
    let cpu_s = (6_000.0 * 40e-9 + f64::from(bytes) * 0.25e-9) / 100.0;
    assert!((job.operators[1].cpu_s[0] / cpu_s - 1.0).abs() < 1e-9, "{:?}", job.operators);
    assert_eq!(problem.check(), Ok(()));
    assert_eq!(solve(&problem, None, &NoDeadline).unwrap().jobs.len(), 1);
}

#[test]
fn the_problem_contains_the_workers_that_hold_the_graph() {
    let mut samples = before_first_rows(1.0);
    assert_eq!(problem(&samples).jobs[0].graph_holders, []);
    samples.workers[1].graphs = vec![samples.jobs[0].dataset.graph.as_ref().unwrap().topology];
    assert_eq!(problem(&samples).jobs[0].graph_holders, [WorkerId(2)]);
    samples.workers[1].draining = true;
    assert_eq!(problem(&samples).jobs[0].graph_holders, []);
}

#[test]
fn a_job_that_is_shorter_than_the_load_of_its_graph_has_one_worker() {
    let plan =
        |passes_left: f64| solve(&problem(&before_first_rows(passes_left)), None, &NoDeadline).unwrap();
    let wanted = |plan: &Plan| plan.wanted_workers.iter().map(|kind| kind.wanted).sum::<u32>();
    let (short, long) = (plan(1.0), plan(1_000.0));
    assert_eq!(wanted(&short), 1, "a worker computes the rows in 2 s");
    assert_eq!(
        short.jobs[0].explanation,
        "at this rate, the job ends before another worker has loaded its graph"
    );
    assert!(wanted(&long) > 1, "{:?}", long.wanted_workers);
    assert!(long.jobs[0].explanation.starts_with("the cluster can compute at most"), "{:?}", long.jobs);
}

#[test]
fn a_job_near_its_end_keeps_its_workers() {
    let mut observer = Observer::default();
    let expected = GraphBatchSize { seeds: 100, nodes: 6_000, edges: 5_900, bytes: 400_000 };
    for second in 1..=8 {
        let mut samples = samples(second, &[JOB]);
        samples.jobs = vec![graph_job(0.0)];
        let stats = GraphStats { expected: Some(expected), ..GraphStats::default() };
        Arc::make_mut(&mut samples.workers[0].jobs[0]).graph = Some(stats);
        observer.push(second * 1_000, &samples);
    }
    let graph = observer.model(JOB).unwrap().graph.expect("the job samples a graph");
    assert_eq!((graph.expected, graph.is_modeled), (expected, true));
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let useful = problem.jobs[0].useful_rows_per_s.expect("the graph is loaded for 40 s");
    assert!((useful - 900.0).abs() < 1.0, "{useful}");
}
