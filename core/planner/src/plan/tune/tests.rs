//! Operator limits and read concurrency by Little's law.

use super::super::testing::{cluster, job, operator};
use super::*;

#[test]
fn reads_and_limits_follow_rates_and_times() {
    let mut job = job(1, 1000.0, &[1.0]);
    job.store_wait_s_per_row = 0.01;
    job.operators.push(operator("wait", &[0.0]));
    job.operators[1].latency_s = 0.02;
    job.operators.push(operator("pinned", &[0.1]));
    (job.operators[2].limit, job.operators[2].latency_s) = (Some(3), 0.1);
    let problem = cluster(&[(4.0, 1)], vec![job]);
    let placement = JobPlacement { worker: 0, cores: 1.1, rows_per_s: 1000.0 };
    let limits = limits(&problem.jobs[0], &problem.workers, &[placement]);
    let numbers: Vec<(u32, bool)> = limits.iter().map(|limit| (limit.limit, limit.is_pinned)).collect();
    assert_eq!(numbers, [(2, false), (32, false), (3, true)]);
    // The mean number of reads in flight is 10.
    let allocation =
        |store_bytes_per_row| super::allocation(&problem.jobs[0], store_bytes_per_row, &placement, &limits);
    assert_eq!(allocation(1e5).read_concurrency, 16);
    assert_eq!(allocation(1e5).operator_limits, [("wait".to_owned(), 64)], "the pinned limit is not sent");
    assert_eq!(allocation(0.0).read_concurrency, 2, "a job whose rows are cached reads nothing");
}
