//! Plans as text, and properties of every plan.

use expect_test::expect;
use feedline_data::ids::WorkerId;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use proptest::prelude::*;

use super::super::testing::{assert_feasible, cluster, job, operator, small, with_tenants};
use super::*;

use crate::plan::{CachePointProblem, CachePolicy, CheckLimit, NoDeadline, TenantProblem};

fn plan(problem: &Problem) -> Plan {
    solve(problem, None, &NoDeadline).unwrap()
}

/// A plan in a few lines.
fn text(plan: &Plan) -> String {
    let mut text = String::new();
    for job in &plan.jobs {
        text += &format!("{}: {:.1} of {:.1} rows/s,", job.name, job.rows_per_s, job.demand_rows_per_s);
        for (worker, allocation) in &job.allocations {
            text += &format!(" worker {worker} {:.2} cores,", allocation.cores);
        }
        text += &format!(" {}\n", job.explanation);
    }
    for wanted in &plan.wanted_workers {
        text += &format!("{}: {} present, {} wanted\n", wanted.worker_type, wanted.live, wanted.wanted);
    }
    text + &plan.reasons.join("\n") + "\n"
}

/// Three jobs with unequal costs and demands, and four workers of two speeds.
fn unequal() -> Problem {
    let jobs = vec![job(1, 6000.0, &[2.0, 1.0]), job(2, 2000.0, &[4.0, 3.0]), job(3, 1000.0, &[1.0, 0.9])];
    cluster(&[(2.0, 2), (4.0, 2)], jobs)
}

#[test]
fn three_unequal_jobs_on_unequal_workers_have_equal_fed_fractions() {
    let problem = unequal();
    let plan = plan(&problem);
    assert_feasible(&problem, &plan);
    expect![[r#"
        job1: 5176.5 of 6000.0 rows/s, worker 3 4.00 cores, worker 4 1.18 cores, 5176 rows/s instead of 6000 rows/s, because the job shares workers with other jobs
        job2: 1725.5 of 2000.0 rows/s, worker 1 2.00 cores, worker 2 1.14 cores, worker 4 2.82 cores, 1725 rows/s instead of 2000 rows/s, because the job shares workers with other jobs
        job3: 862.8 of 1000.0 rows/s, worker 2 0.86 cores, 863 rows/s instead of 1000 rows/s, because the job shares workers with other jobs
        type0: 2 present, 1 wanted
        type1: 2 present, 4 wanted
        the smallest weighted fed fraction is 86.3 %; the upper bound for any plan is 86.3 %
        job `job1`: 5176 rows/s instead of 6000 rows/s, because the job shares workers with other jobs
        job `job2`: 1725 rows/s instead of 2000 rows/s, because the job shares workers with other jobs
        job `job3`: 863 rows/s instead of 1000 rows/s, because the job shares workers with other jobs
    "#]].assert_eq(&text(&plan));
}

#[test]
fn an_even_division_has_a_smaller_fed_fraction() {
    let problem = unequal();
    let costs = Costs::new(&problem);
    // An even division gives each job a third of each worker.
    let equal = (0..3).map(|j| {
        costs
            .fed_fraction_alone(j, &costs.options[j][0])
            .min(costs.rate_alone(&costs.options[j][0]) / 3.0 / costs.demands[j])
    });
    let equal = equal.fold(1.0, f64::min);
    let planned = plan(&problem).objective.smallest_fed;
    assert!(planned > 1.2 * equal, "the plan feeds {planned}, an equal split {equal}");
}

#[test]
fn a_pinned_cache_is_used_and_a_forbidden_one_is_not() {
    let mut cached = job(1, 1000.0, &[1.0]);
    cached.operators.push(operator("resize", &[1.0]));
    cached.cache_points = vec![CachePointProblem {
        operator_index: 0,
        bytes: 1e8,
        bytes_per_row: 1e3,
        key: 7,
        ..CachePointProblem::default()
    }];
    cached.cache = CachePolicy::Pinned { point: 0, tier: CacheTier::Memory };
    let problem = cluster(&[(4.0, 1)], vec![cached.clone()]);
    assert_eq!(
        plan(&problem).jobs[0].cache,
        Some(PlannedCachePoint {
            operator_index: 0,
            tier: CacheTier::Memory,
            encoding: CacheEncoding::AsIs,
            key: 7
        })
    );
    cached.cache = CachePolicy::Never;
    let problem = cluster(&[(4.0, 1)], vec![cached]);
    assert_eq!(plan(&problem).jobs[0].cache, None);
}

#[test]
fn a_cache_that_saves_more_than_it_costs_is_chosen() {
    let mut job = job(1, 3000.0, &[2.0]);
    job.operators.push(operator("augment", &[0.5]));
    job.cache_points = vec![CachePointProblem {
        operator_index: 0,
        bytes: 2e9,
        bytes_per_row: 1.5e5,
        key: 7,
        ..CachePointProblem::default()
    }];
    let problem = cluster(&[(2.0, 1)], vec![job]);
    let plan = plan(&problem);
    expect![[r#"
        job1: 3000.0 of 3000.0 rows/s, worker 1 1.86 cores, its demand is 3000 rows/s
        type0: 1 present, 1 wanted
        the smallest weighted fed fraction is 100 %; the upper bound for any plan is 100 %
        cache the output of `decode` in the workers' memory: 2 GB, read by 1 job
    "#]]
    .assert_eq(&text(&plan));
}

#[test]
fn a_limited_operator_does_not_slow_down_other_jobs() {
    let mut limited = job(1, 1000.0, &[1.0]);
    limited.operators[0].latency_s = 0.009;
    limited.operators[0].limit = Some(1);
    let problem = cluster(&[(4.0, 1)], vec![limited, job(2, 1000.0, &[1.0])]);
    let plan = plan(&problem);
    expect![[r#"
        job1: 100.0 of 1000.0 rows/s, worker 1 0.10 cores, `decode` is limited to 1 execution at a time on each worker: 100 rows/s on 1 worker
        job2: 1000.0 of 1000.0 rows/s, worker 1 1.15 cores, its demand is 1000 rows/s
        type0: 1 present, 10 wanted
        the smallest weighted fed fraction is 10 %; the upper bound for any plan is 10 %
        job `job1`: `decode` is limited to 1 execution at a time on each worker: 100 rows/s on 1 worker
    "#]].assert_eq(&text(&plan));
}

#[test]
fn a_job_at_the_quota_of_its_tenant_names_the_quota() {
    let mut jobs = vec![job(1, 2000.0, &[1.0]), job(2, 2000.0, &[1.0]), job(3, 1000.0, &[1.0])];
    (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(0));
    let tenants =
        vec![TenantProblem { name: "vision".to_owned(), cores: Some(1.0), ..TenantProblem::default() }];
    let problem = Problem { tenants, ..cluster(&[(4.0, 1)], jobs) };
    let plan = plan(&problem);
    assert_feasible(&problem, &plan);
    expect![[r#"
        job1: 500.0 of 2000.0 rows/s, worker 1 0.50 cores, the jobs of tenant `vision` use its entire quota of 1 core
        job2: 500.0 of 2000.0 rows/s, worker 1 0.50 cores, the jobs of tenant `vision` use its entire quota of 1 core
        job3: 1000.0 of 1000.0 rows/s, worker 1 1.15 cores, its demand is 1000 rows/s
        type0: 1 present, 1 wanted
        the smallest weighted fed fraction is 25 %; the upper bound for any plan is 25 %
        job `job1`: the jobs of tenant `vision` use its entire quota of 1 core
        job `job2`: the jobs of tenant `vision` use its entire quota of 1 core
    "#]].assert_eq(&text(&plan));
}

#[test]
fn a_small_change_keeps_the_plan_and_a_large_one_changes_it() {
    let mut problem = unequal();
    let first = plan(&problem);
    problem.jobs[0].operators[0].cpu_s[0] *= 1.01;
    let second = solve(&problem, Some(&first), &NoDeadline).unwrap();
    let decisions = |plan: &Plan| -> Vec<Vec<(WorkerId, f64)>> {
        let of_job =
            |job: &JobPlan| job.allocations.iter().map(|(worker, own)| (*worker, own.cores)).collect();
        plan.jobs.iter().map(of_job).collect()
    };
    assert_eq!(decisions(&first), decisions(&second));
    problem.jobs[0].demand_rows_per_s = Some(1000.0);
    let third = solve(&problem, Some(&second), &NoDeadline).unwrap();
    assert_ne!(decisions(&second), decisions(&third));
    assert!(third.objective.smallest_fed > 1.1 * second.objective.smallest_fed);
}

#[test]
fn a_lost_worker_moves_only_its_own_jobs() {
    let jobs = (1..=6).map(|id| job(id, 900.0, &[1.0])).collect();
    let mut problem = cluster(&[(2.0, 4)], jobs);
    let first = plan(&problem);
    problem.workers.remove(0);
    let second = solve(&problem, Some(&first), &NoDeadline).unwrap();
    assert_feasible(&problem, &second);
    let cores = |job: &JobPlan, worker: WorkerId| job.allocations.get(&worker).map_or(0.0, |own| own.cores);
    let (mut stayed, mut had) = (0.0, 0.0);
    for (before, after) in first.jobs.iter().zip(&second.jobs) {
        for worker in (2..=4).map(WorkerId) {
            had += cores(before, worker);
            stayed += cores(before, worker).min(cores(after, worker));
        }
    }
    assert!(stayed > 0.95 * had, "{stayed} of {had} cores stayed with their jobs");
    assert!(second.objective.smallest_fed > 0.99, "{}", text(&second));
}

#[test]
fn without_time_the_plan_is_feasible() {
    let problem = unequal();
    let early = solve(&problem, None, &CheckLimit::new(0)).unwrap();
    assert!(early.is_fallback && early.objective.smallest_fed > 0.3, "{}", text(&early));
    assert_feasible(&problem, &early);
    // Without a deadline, the same problem is solved again.
    assert!(!solve(&problem, Some(&early), &NoDeadline).unwrap().is_fallback);
}

#[test]
fn an_inconsistent_problem_is_rejected_with_a_sentence() {
    let rejection = |change: fn(&mut Problem)| {
        let mut problem = unequal();
        change(&mut problem);
        solve(&problem, None, &NoDeadline).unwrap_err()
    };
    expect!["job `job1` has an invalid cost or size NaN: expected a finite number of at least 0"]
        .assert_eq(&rejection(|problem| problem.jobs[0].operators[0].cpu_s[1] = f64::NAN));
    expect!["job `job2` has an operator without CPU times for all 2 worker types"]
        .assert_eq(&rejection(|problem| problem.jobs[1].overhead_cpu_s.clear()));
    expect!["worker 2 has worker type index 9, but the problem has only 2 worker types"]
        .assert_eq(&rejection(|problem| problem.workers[1].worker_type = 9));
    expect!["worker type `type0` has 0 cores: expected a number above 0"]
        .assert_eq(&rejection(|problem| problem.worker_types[0].cores = 0.0));
    expect!["job `job3` has a tenant index that is out of range"]
        .assert_eq(&rejection(|problem| problem.jobs[2].tenant = Some(0)));
    expect!["tenant `` has a quota of 0 cores: expected a number above 0"].assert_eq(&rejection(|problem| {
        problem.tenants.push(TenantProblem { cores: Some(0.0), ..TenantProblem::default() });
    }));
    expect!["job `job1` has the weight 0: expected a number above 0"]
        .assert_eq(&rejection(|problem| problem.jobs[0].weight = 0.0));
}

#[test]
fn a_cluster_without_jobs_or_workers_has_a_plan() {
    let nothing = plan(&Problem::default());
    assert!(nothing.jobs.is_empty());
    let idle = plan(&cluster(&[(4.0, 2)], Vec::new()));
    assert_eq!(idle.wanted_workers[0].wanted, 0);
    let mut no_workers = cluster(&[(4.0, 0)], vec![job(1, 100.0, &[1.0])]);
    no_workers.worker_types[0].max_workers = 5;
    let no_capacity = plan(&no_workers);
    assert_eq!((no_capacity.jobs[0].fed_fraction, no_capacity.wanted_workers[0].wanted), (0.0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_plan_is_feasible_and_solving_again_changes_nothing(seed in 0u64..1_000_000) {
        let problem = small(seed, 1);
        let first = plan(&problem);
        assert_feasible(&problem, &first);
        prop_assert!(first.objective.smallest_fed <= first.objective_bound.smallest_fed * (1.0 + 1e-4) + 1e-9);
        prop_assert_eq!(&solve(&problem, Some(&first), &NoDeadline).unwrap(), &first);
        // The result must not depend on the fingerprint.
        let unknown = Plan { fingerprint: 0, ..first.clone() };
        let again = solve(&problem, Some(&unknown), &NoDeadline).unwrap();
        prop_assert_eq!(&again.jobs, &first.jobs);
        prop_assert_eq!(&again.wanted_workers, &first.wanted_workers);
    }

    #[test]
    fn quotas_hold_in_every_plan(seed in 0u64..1_000_000) {
        let problem = with_tenants(seed, 1);
        let first = plan(&problem);
        assert_feasible(&problem, &first);
        let unknown = Plan { fingerprint: 0, ..first.clone() };
        let again = solve(&problem, Some(&unknown), &NoDeadline).unwrap();
        prop_assert_eq!(&again.jobs, &first.jobs);
        assert_feasible(&problem, &solve(&problem, None, &CheckLimit::new(0)).unwrap());
        // Demands change, and a worker is lost: jobs keep their rates, but quotas still hold.
        let mut changed = problem.clone();
        for (place, job) in changed.jobs.iter_mut().enumerate() {
            let factor = [0.93, 1.2, 0.5][place % 3];
            job.demand_rows_per_s = job.demand_rows_per_s.map(|demand| demand * factor);
        }
        assert_feasible(&changed, &solve(&changed, Some(&first), &NoDeadline).unwrap());
        if changed.workers.len() > 1 {
            changed.workers.remove(0);
            assert_feasible(&changed, &solve(&changed, Some(&first), &NoDeadline).unwrap());
        }
        // A smaller quota applies at once.
        let mut halved = problem.clone();
        for tenant in &mut halved.tenants {
            tenant.cores = tenant.cores.map(|cores| cores / 2.0);
            tenant.cache_bytes = tenant.cache_bytes.map(|bytes| bytes / 2.0);
        }
        assert_feasible(&halved, &solve(&halved, Some(&first), &NoDeadline).unwrap());
    }

    #[test]
    fn the_fallback_is_feasible_and_never_better(seed in 0u64..1_000_000) {
        let problem = small(seed, 0);
        let early = solve(&problem, None, &CheckLimit::new(0)).unwrap();
        assert_feasible(&problem, &early);
        let best = plan(&problem);
        prop_assert!(early.objective.smallest_fed <= best.objective.smallest_fed * (1.0 + 1e-3) + 1e-6);
    }
}
