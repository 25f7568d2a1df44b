//! Limits of cores add up to the quotas.

use proptest::prelude::*;

use super::super::deadline::{CheckLimit, NoDeadline};
use super::super::solve::solve;
use super::super::testing::{assert_feasible, cluster, job, with_tenants};
use super::*;
use crate::plan::TenantProblem;

fn quota(name: &str, cores: Option<f64>) -> TenantProblem {
    TenantProblem { name: name.to_owned(), cores, cache_bytes: None }
}

/// Two jobs of a tenant with a quota, and one job of a tenant without.
fn problem() -> Problem {
    let mut jobs = vec![job(1, 9000.0, &[1.0]), job(2, 9000.0, &[1.0]), job(3, 1000.0, &[1.0])];
    (jobs[0].tenant, jobs[1].tenant, jobs[2].tenant) = (Some(0), Some(0), Some(1));
    Problem { tenants: vec![quota("a", Some(3.0)), quota("b", None)], ..cluster(&[(4.0, 3)], jobs) }
}

#[test]
fn a_quota_is_divided_in_proportion_to_the_planned_cores() {
    let problem = problem();
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    let limits = max_cores(&plan, &problem);
    let of =
        |job: u64| -> f64 { limits.iter().filter(|((id, _), _)| id.0 == job).map(|(_, limit)| limit).sum() };
    assert!((of(1) - 1.5).abs() < 0.01 && (of(2) - 1.5).abs() < 0.01, "{limits:?}");
    assert!(limits.keys().all(|(job, _)| job.0 != 3), "a job without a quota has no limit");
}

#[test]
fn limits_include_cores_of_the_quota_that_the_plan_leaves_unused() {
    let mut problem = problem();
    problem.jobs[0].demand_rows_per_s = Some(500.0);
    problem.jobs[1].demand_rows_per_s = Some(250.0);
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    let limits = max_cores(&plan, &problem);
    let all: f64 = limits.values().sum();
    assert!((all - 3.0).abs() < 0.01, "{limits:?}");
    assert!(limits.iter().all(|(_, limit)| *limit > 0.9), "{limits:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn limits_never_exceed_the_quota(seed in 0u64..1_000_000, without_time in proptest::bool::ANY) {
        let problem = with_tenants(seed, 1);
        let plan = match without_time {
            true => solve(&problem, None, &CheckLimit::new(0)).unwrap(),
            false => solve(&problem, None, &NoDeadline).unwrap(),
        };
        assert_feasible(&problem, &plan);
        let limits = max_cores(&plan, &problem);
        for (place, tenant) in problem.tenants.iter().enumerate() {
            let is_own_job = |id: &JobId| problem.jobs.iter().any(|job| job.id == *id && job.tenant == Some(place));
            let own: Vec<f64> = limits.iter().filter(|((id, _), _)| is_own_job(id)).map(|(_, limit)| *limit).collect();
            match tenant.cores {
                // Each limit is at least one unit.
                Some(cores) => prop_assert!(own.iter().sum::<f64>() <= cores + CORE_LIMIT_UNIT * own.len() as f64),
                None => prop_assert!(own.is_empty()),
            }
        }
    }
}
