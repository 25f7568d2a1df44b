//! Needs of pools: their types, and what is unknown.

use feedline_data::ids::WorkerId;
use feedline_data::messages::samples::{Samples, WorkerReportSample};

use super::*;
use crate::observe::tests::{JOB, samples};
use crate::plan::{CachePolicy, NoDeadline, PlannerSettings, solve};

fn pool(name: &str, max_workers: u32) -> PoolProblem {
    PoolProblem { name: name.to_owned(), min_workers: 0, max_workers }
}

/// An observer of the pools `spot` and `base`, and of one worker of `spot`, which runs a job.
fn observed() -> Observer {
    let mut observer = Observer::default();
    observer.set_pools(vec![pool("spot", 2), pool("base", 8)]);
    for second in 1..=8 {
        observer.push(1_000 * second, &samples_of(second, &["spot"]));
    }
    observer
}

/// Samples of one job on one worker of two cores for each pool.
fn samples_of(second: u64, pools: &[&str]) -> Samples {
    let mut seen = samples(second, &[JOB]);
    let worker = seen.workers.remove(0);
    let of = |(id, pool): (u64, &&str)| WorkerReportSample {
        worker: WorkerId(id),
        pool: (*pool).to_owned(),
        ..worker.clone()
    };
    seen.workers = (1..).zip(pools).map(of).collect();
    seen
}

fn needs(observer: &Observer) -> ResourceNeeds {
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let plan = solve(&problem, None, &NoDeadline).expect("the problem is consistent");
    observer.needs(Some(&plan), &problem)
}

#[test]
fn a_type_has_the_name_of_its_pool_and_no_other_pool() {
    let mut observer = observed();
    observer.push(9_000, &samples_of(9, &["spot", "base", ""]));
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let names: Vec<&str> = problem.worker_types.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["spot: 2 cores, 1.0 GiB", "base: 2 cores, 1.0 GiB", "2 cores, 1.0 GiB"]);
}

#[test]
fn the_needs_of_a_pool_without_reports_are_unknown() {
    let needs = needs(&observed());
    assert!(needs.is_known);
    // The consumers accept five times the rows that one worker computes with 80 % of its cores.
    assert_eq!(needs.wanted_in("spot"), Some(needs.wanted_workers));
    assert!(needs.wanted_workers > 2, "{needs:?}");
    assert_eq!(needs.wanted_in("base"), None);
    assert_eq!(needs.wanted_in("other"), None);
    assert_eq!(needs.pool_scale_input("base", 9_000, 7).wanted_workers, 7, "the pool keeps its size");
}

#[test]
fn demand_moves_to_a_pool_whose_workers_have_left() {
    let mut observer = observed();
    observer.push(9_000, &samples_of(9, &["spot", "base"]));
    observer.push(10_000, &samples_of(10, &["spot"]));
    let needs = needs(&observer);
    assert_eq!(needs.wanted_in("spot"), Some(2), "its maximum");
    assert_eq!(needs.wanted_in("base"), Some(needs.wanted_workers - 2));
    assert!(needs.wanted_workers > 2, "{needs:?}");
}

#[test]
fn a_draining_worker_does_not_hide_the_type_of_its_pool() {
    let mut observer = observed();
    let mut seen = samples_of(9, &["spot", "base"]);
    seen.workers[1].draining = true;
    observer.push(9_000, &seen);
    assert!(needs(&observer).wanted_in("base").is_some());
}

#[test]
fn a_cluster_without_jobs_needs_no_pool() {
    let mut observer = observed();
    observer.push(9_000, &Samples::default());
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let needs = observer.needs(None, &problem);
    assert_eq!((needs.is_known, needs.wanted_in("spot"), needs.wanted_in("base")), (true, Some(0), Some(0)));
}

#[test]
fn the_needs_of_all_pools_are_unknown_before_the_first_rows() {
    let mut observer = Observer::default();
    observer.set_pools(vec![pool("spot", 2)]);
    observer.push(1_000, &samples_of(1, &["spot"]));
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let needs = observer.needs(None, &problem);
    assert_eq!((needs.is_known, needs.wanted_in("spot")), (false, None));
}

#[test]
fn a_job_that_is_being_indexed_does_not_count_as_no_job() {
    let mut observer = observed();
    let preparing = |jobs| Samples { preparing_jobs: 1, ..jobs };
    observer.push(9_000, &preparing(Samples::default()));
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let unknown = observer.needs(None, &problem);
    assert_eq!((unknown.is_known, unknown.wanted_in("spot")), (false, None));
    assert_eq!(unknown.scale_input(9_000, 2).wanted_workers, 2, "the workers that index stay");
    observer.push(10_000, &preparing(samples_of(10, &["spot"])));
    observer.push(11_000, &preparing(samples_of(11, &["spot"])));
    assert!(needs(&observer).is_known, "the need of the running job is known");
}

/// A leader without a scaler knows no worker types but those of live workers.
#[test]
fn the_needs_are_unknown_while_all_workers_drain() {
    let mut observer = Observer::default();
    for second in 1..=9 {
        let mut seen = samples_of(second, &["spot"]);
        seen.workers[0].draining = second == 9;
        observer.push(1_000 * second, &seen);
        if second == 8 {
            assert!(needs(&observer).wanted_workers > 0);
        }
    }
    assert_eq!((needs(&observer).is_known, needs(&observer).wanted_workers), (false, 0));
}
