//! Limits and reads by Little's law.

use super::super::testing::{cluster, job, operator};
use super::*;

#[test]
fn reads_and_limits_follow_rates_and_times() {
    let mut job = job(1, 1000.0, &[1.0]);
    job.store_wait_s = 0.01;
    job.operators.push(operator("wait", &[0.0]));
    job.operators[1].latency_s = 0.02;
    job.operators.push(operator("pinned", &[0.1]));
    job.operators[2].limit = Some(3);
    let problem = cluster(&[(4.0, 1)], vec![job]);
    let part = JobShare { worker: 0, cores: 1.1, rows_per_s: 1000.0 };
    let slot = &problem.workers[0];
    // Ten in flight on the mean.
    assert_eq!(assignment(&problem.jobs[0], 1e5, slot, &part).read_concurrency, 16);
    let limits: Vec<(u32, bool)> = limits(&problem.jobs[0], &problem.workers, &[part])
        .iter()
        .map(|limit| (limit.limit, limit.is_pinned))
        .collect();
    assert_eq!(limits, [(2, false), (32, false), (3, true)]);
    // From a cache nothing is read.
    assert_eq!(assignment(&problem.jobs[0], 0.0, slot, &part).read_concurrency, 2);
}
