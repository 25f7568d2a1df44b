//! Placements on single workers.

use super::super::testing::{cluster, job};
use super::*;
use crate::model::Locality;
use crate::plan::costs::Costs;
use crate::plan::{JobProblem, Problem};

fn assigned(problem: &Problem, rows: &[Vec<f64>], before: &[Vec<(usize, f64)>]) -> Vec<Vec<JobPlacement>> {
    let costs = Costs::new(problem);
    let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
    let types: Vec<usize> = problem.workers.iter().map(|slot| slot.worker_type).collect();
    let holders = vec![Vec::new(); options.len()];
    let previous = PreviousWorkers { cores: before, graph_holders: &holders };
    assign(&costs, &options, rows, &types, previous, 1.0)
}

#[test]
fn a_job_uses_the_workers_that_hold_its_graph_first() {
    let mut jobs = vec![job(1, 1000.0, &[1.0]), job(2, 3000.0, &[1.0])];
    jobs[1].graph_holders = vec![WorkerId(3)];
    let problem = cluster(&[(2.0, 4)], jobs);
    let plan = crate::plan::solve(&problem, None, &crate::plan::NoDeadline).expect("a consistent problem");
    let uses = |j: usize| plan.jobs[j].allocations.contains_key(&WorkerId(3));
    assert!(uses(1) && !uses(0), "{:?}", plan.jobs);
}

#[test]
fn jobs_share_few_workers() {
    let jobs = (1..=4).map(|id| job(id, 3000.0, &[1.0])).collect();
    let problem = cluster(&[(2.0, 6)], jobs);
    let parts = assigned(&problem, &vec![vec![3000.0]; 4], &vec![Vec::new(); 4]);
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 2, 2]);
    let rates = parts.iter().map(|parts| parts.iter().map(|part| part.rows_per_s).sum::<f64>());
    assert!(rates.into_iter().all(|rate| (rate - 3000.0).abs() < 1e-6));
}

#[test]
fn a_job_stays_on_its_workers() {
    let problem = cluster(&[(2.0, 3)], vec![job(1, 1000.0, &[1.0]), job(2, 1000.0, &[1.0])]);
    let before = vec![vec![(2, 1.5)], vec![(1, 1.0)]];
    let parts = assigned(&problem, &[vec![1000.0], vec![1800.0]], &before);
    let places = |parts: &Vec<JobPlacement>| parts.iter().map(|part| part.worker).collect::<Vec<_>>();
    assert_eq!((places(&parts[0]), places(&parts[1])), (vec![2], vec![0, 1]));
}

#[test]
fn a_small_change_of_demand_moves_no_job() {
    let problem = cluster(&[(2.0, 4)], vec![job(1, 1000.0, &[1.0]), job(2, 2000.0, &[1.0])]);
    let before = vec![vec![(0, 1.15)], vec![(1, 2.0), (2, 0.3)]];
    for share in [0.93, 1.0, 1.07] {
        let parts = assigned(&problem, &[vec![1000.0 * share], vec![2000.0 * share]], &before);
        let cores = |part: &JobPlacement| (part.worker, (1e6 * part.cores).round() / 1e6);
        let parts: Vec<Vec<(usize, f64)>> =
            parts.iter().map(|parts| parts.iter().map(cores).collect()).collect();
        assert_eq!(parts, before, "{share}");
    }
}

#[test]
fn a_job_with_an_operator_limit_is_spread() {
    let mut limited = job(1, 400.0, &[1.0]);
    limited.operators[0].latency_s = 0.009;
    limited.operators[0].limit = Some(1);
    let problem = cluster(&[(2.0, 4)], vec![job(2, 7600.0, &[1.0]), limited]);
    let parts = assigned(&problem, &[vec![7600.0], vec![400.0]], &[Vec::new(), Vec::new()]);
    assert_eq!(parts[1].len(), 4);
    let sum = |parts: &Vec<JobPlacement>| parts.iter().map(|part| part.rows_per_s).sum::<f64>();
    assert!((sum(&parts[0]) - 7600.0).abs() < 1e-3 && (sum(&parts[1]) - 400.0).abs() < 1e-3);
}

#[test]
fn jobs_with_opposite_needs_share_workers() {
    // Job 1 needs cores and no network, and job 2 the reverse: a worker with one job would waste the other resource.
    let mut cores = job(1, 6000.0, &[1.0]);
    cores.delivered_bytes_per_row = 1e3;
    let mut network = job(2, 6000.0, &[0.01]);
    network.delivered_bytes_per_row = 1e6;
    let mut problem = cluster(&[(2.0, 4)], vec![cores, network]);
    problem.worker_types[0].nic_bytes_per_s = 2e9;
    let parts = assigned(&problem, &[vec![7000.0], vec![7500.0]], &[Vec::new(), Vec::new()]);
    let sum = |parts: &Vec<JobPlacement>| parts.iter().map(|part| part.rows_per_s).sum::<f64>();
    assert!((sum(&parts[0]) - 7000.0).abs() < 1.0 && (sum(&parts[1]) - 7500.0).abs() < 1.0, "{parts:?}");
}

#[test]
fn local_traffic_needs_no_network() {
    let mut network = job(1, 1000.0, &[0.01]);
    (network.delivered_bytes_per_row, network.store_bytes_per_row) = (1e6, 2e6);
    let on_one = |locality| {
        let mut problem = cluster(&[(2.0, 1)], vec![JobProblem { locality, ..network.clone() }]);
        problem.worker_types[0].nic_bytes_per_s = 1e9;
        let costs = Costs::new(&problem);
        costs.rate_alone(&costs.options[0][0])
    };
    assert_eq!(on_one(Locality::default()), 500.0);
    assert_eq!(on_one(Locality { store_is_local: true, consumers_share: 0.0 }), 1000.0);
    assert!(on_one(Locality { store_is_local: true, consumers_share: 1.0 }) > 100_000.0);
}
