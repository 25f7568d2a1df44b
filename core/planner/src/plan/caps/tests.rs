//! Limits add up to quotas.

use proptest::prelude::*;

use super::super::solve::{CheckLimit, NoDeadline, solve};
use super::super::testing::{assert_feasible, cluster, job, with_tenants};
use super::*;
use crate::plan::TenantProblem;

fn quota(name: &str, cores: Option<f64>) -> TenantProblem {
    TenantProblem { name: name.to_owned(), cores, cache_bytes: None }
}

/// Two jobs of a tenant with a quota, one of a tenant without.
fn problem() -> Problem {
    let mut jobs = vec![job(1, 9000.0, &[1.0]), job(2, 9000.0, &[1.0]), job(3, 1000.0, &[1.0])];
    (jobs[0].tenant, jobs[1].tenant, jobs[2].tenant) = (Some(0), Some(0), Some(1));
    Problem { tenants: vec![quota("a", Some(3.0)), quota("b", None)], ..cluster(&[(4.0, 3)], jobs) }
}

#[test]
fn a_quota_is_divided_among_jobs_and_workers_as_the_plan_has_it() {
    let problem = problem();
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    let caps = caps(&plan, &problem);
    let of = |job: u64| -> f64 { caps.iter().filter(|((id, _), _)| id.0 == job).map(|(_, cap)| cap).sum() };
    assert!((of(1) - 1.5).abs() < 0.01 && (of(2) - 1.5).abs() < 0.01, "{caps:?}");
    assert!(caps.keys().all(|(job, _)| job.0 != 3), "no quota, no limit");
}

#[test]
fn what_a_plan_leaves_of_a_quota_may_be_used() {
    let mut problem = problem();
    problem.jobs[0].demand_rows_per_s = Some(500.0);
    problem.jobs[1].demand_rows_per_s = Some(250.0);
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    let caps = caps(&plan, &problem);
    let all: f64 = caps.values().sum();
    assert!((all - 3.0).abs() < 0.01, "{caps:?}");
    assert!(caps.iter().all(|(_, cap)| *cap > 0.9), "{caps:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn limits_are_never_more_than_a_quota(seed in 0u64..1_000_000, hasty in proptest::bool::ANY) {
        let problem = with_tenants(seed, 1);
        let plan = match hasty {
            true => solve(&problem, None, &CheckLimit::new(0)).unwrap(),
            false => solve(&problem, None, &NoDeadline).unwrap(),
        };
        assert_feasible(&problem, &plan);
        let caps = caps(&plan, &problem);
        for (place, tenant) in problem.tenants.iter().enumerate() {
            let is_its = |id: &JobId| problem.jobs.iter().any(|job| job.id == *id && job.tenant == Some(place));
            let own: Vec<f64> = caps.iter().filter(|((id, _), _)| is_its(id)).map(|(_, cap)| *cap).collect();
            match tenant.cores {
                // Each of them is told of a thousandth at least.
                Some(cores) => prop_assert!(own.iter().sum::<f64>() <= cores + UNIT * own.len() as f64),
                None => prop_assert!(own.is_empty()),
            }
        }
    }
}
