//! Wanted numbers of workers.

use super::super::testing::{cluster, job};
use super::*;
use crate::plan::NoDeadline;

fn count(problem: &Problem) -> Vec<u32> {
    let costs = Costs::new(problem);
    let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
    wanted_workers(problem, &costs, &options, &NoDeadline).into_iter().map(|wanted| wanted.wanted).collect()
}

#[test]
fn the_wanted_workers_feed_all_jobs_at_the_target_utilisation() {
    // 10 active cores are 11.1 cores at 90 % utilisation: three workers of four cores.
    let mut problem = cluster(&[(4.0, 1)], vec![job(1, 10_000.0, &[1.0])]);
    assert_eq!(count(&problem), [3]);
    problem.jobs[0].demand_rows_per_s = Some(1000.0);
    assert_eq!(count(&problem), [1]);
    problem.jobs[0].demand_rows_per_s = Some(1e6);
    assert_eq!(count(&problem), [10], "at most the limit");
}

#[test]
fn more_workers_than_the_store_can_feed_are_not_wanted() {
    let mut problem = cluster(&[(4.0, 1)], vec![job(1, 10_000.0, &[1.0])]);
    problem.jobs[0].store_bytes_per_row = 1e5;
    problem.store_bytes_per_s = vec![3e8];
    assert_eq!(count(&problem), [1]);
}

#[test]
fn a_sequential_operator_needs_more_workers() {
    let mut job = job(1, 1000.0, &[0.1]);
    job.operators[0].latency_s = 0.0049;
    job.operators[0].limit = Some(1);
    // 5 ms a row are 200 rows/s on each worker, of which 180 count.
    assert_eq!(count(&cluster(&[(4.0, 1)], vec![job])), [6]);
}

#[test]
fn the_type_with_cheaper_rows_grows() {
    let mut problem = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 12_000.0, &[1.0, 0.5])]);
    problem.worker_types[1].core_hour = 0.06;
    let counts = count(&problem);
    assert_eq!(counts, [0, 2], "half of the CPU time at 1.5 times the price");
}

#[test]
fn jobs_that_need_a_small_part_of_a_worker_need_one_worker() {
    // 1 ms of CPU per second is a four-thousandth of a worker.
    let mut problem = cluster(&[(4.0, 2)], vec![job(1, 1.0, &[1.0])]);
    assert_eq!(count(&problem), [1]);
    let mut two_types = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 1.0, &[1.0, 0.5])]);
    assert_eq!(count(&two_types).iter().sum::<u32>(), 1);
    two_types.jobs.push(job(2, 10_000.0, &[1.0, 0.5]));
    assert_eq!(count(&two_types), [0, 2], "the other job has workers for both");
    problem.jobs.clear();
    assert_eq!(count(&problem), [0]);
}
