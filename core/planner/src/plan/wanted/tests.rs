//! Counts of workers.

use super::super::testing::{cluster, job};
use super::*;
use crate::plan::NoDeadline;

fn count(problem: &Problem) -> Vec<u32> {
    let costs = Costs::new(problem);
    let ways: Vec<&ExecutionOption> = costs.ways.iter().map(|ways| &ways[0]).collect();
    wanted(problem, &costs, &ways, &NoDeadline).into_iter().map(|wanted| wanted.wanted).collect()
}

#[test]
fn as_many_as_feed_all_at_the_wanted_utilisation() {
    // 10 cores at work are 11.1 at 90 %: three workers of four.
    let mut problem = cluster(&[(4.0, 1)], vec![job(1, 10_000.0, &[1.0])]);
    assert_eq!(count(&problem), [3]);
    problem.jobs[0].demand_rows_per_s = Some(1000.0);
    assert_eq!(count(&problem), [1]);
    problem.jobs[0].demand_rows_per_s = Some(1e6);
    assert_eq!(count(&problem), [10], "no more than the limit");
}

#[test]
fn no_more_than_the_store_can_feed() {
    let mut problem = cluster(&[(4.0, 1)], vec![job(1, 10_000.0, &[1.0])]);
    problem.jobs[0].store_bytes = 1e5;
    problem.stores = vec![3e8];
    assert_eq!(count(&problem), [1]);
}

#[test]
fn more_workers_for_an_operator_that_runs_one_at_a_time() {
    let mut job = job(1, 1000.0, &[0.1]);
    job.operators[0].latency_s = 0.0049;
    job.operators[0].limit = Some(1);
    // 5 ms a row are 200 rows/s of one worker, of which 180 are counted on.
    assert_eq!(count(&cluster(&[(4.0, 1)], vec![job])), [6]);
}

#[test]
fn the_cheaper_type_grows() {
    let mut problem = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 12_000.0, &[1.0, 0.5])]);
    problem.worker_types[1].core_hour = 0.06;
    let counts = count(&problem);
    assert_eq!(counts, [0, 2], "half the time at one and a half times the price");
}
