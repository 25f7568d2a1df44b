//! The linear problem against a grid search.

use super::super::testing::{cluster, job, small, with_tenants};
use super::*;
use crate::plan::{CheckLimit, JobProblem, NoDeadline, Problem, TenantProblem};

/// The largest smallest weighted fed fraction on a grid: job a uses a share of each type's cores, and job b the rest.
fn brute(costs: &Costs) -> f64 {
    let steps = 200;
    let mut best: f64 = 0.0;
    let give = |j: usize, w: usize, share: f64| {
        share * costs.worker_counts[w] * costs.worker_capacity[w][0]
            / costs.options[j][0].resources_per_row[w][0]
            / costs.demands[j]
    };
    for first in 0..=steps {
        for second in 0..=steps {
            let (x, y) = (f64::from(first) / f64::from(steps), f64::from(second) / f64::from(steps));
            let fed = |j: usize, x: f64, y: f64| (give(j, 0, x) + give(j, 1, y)).min(1.0) / costs.weights[j];
            best = best.max(fed(0, x, y).min(fed(1, 1.0 - x, 1.0 - y)));
        }
    }
    best.min(1.0)
}

#[test]
fn two_jobs_on_two_types_match_a_grid_search() {
    for seed in 0..40 {
        let mut random = super::super::testing::TestRandom::new(seed);
        let mut made = |id| {
            job(
                id,
                random.log_uniform(500.0, 5000.0),
                &[random.log_uniform(0.3, 5.0), random.log_uniform(0.3, 5.0)],
            )
        };
        let jobs = vec![made(1), made(2)];
        let mut problem = cluster(&[(2.0, 2), (4.0, 1)], jobs);
        problem.jobs[1].weight = [1.0, 3.0][seed as usize % 2];
        let costs = Costs::new(&problem);
        let found = solve_selection(&costs, &[0, 0], &NoDeadline).unwrap().objective.smallest_fed;
        let grid = brute(&costs);
        assert!(
            found >= grid - 1e-4 && found <= grid * 1.03 + 0.02,
            "seed {seed}: {found}, on the grid {grid}"
        );
    }
}

/// The largest smallest weighted fed fraction on a grid: each job uses a share of each type's cores, and the jobs of
/// a tenant at most its quota.
fn brute_with_quota(costs: &Costs, steps: u32) -> f64 {
    let share = |step: u32| f64::from(step) / f64::from(steps);
    let mut best: f64 = 0.0;
    for first in 0..=steps {
        for second in 0..=steps {
            // Job a has the share x of type 0 and y of type 1, and job b the rest. A job over its quota first gives
            // up cores of the type on which a row needs more.
            let fed = |j: usize, x: f64, y: f64| {
                let option = &costs.options[j][0];
                let mut parts = [x, y].map(|part| part.max(0.0));
                let cores = |w: usize, part: f64| part * costs.worker_counts[w] * costs.worker_capacity[w][0];
                let mut over = cores(0, parts[0]) + cores(1, parts[1]) - option.core_quota;
                let dear = usize::from(option.resources_per_row[1][0] > option.resources_per_row[0][0]);
                for w in [dear, 1 - dear] {
                    let less =
                        (over / (costs.worker_counts[w] * costs.worker_capacity[w][0])).clamp(0.0, parts[w]);
                    over -= cores(w, less);
                    parts[w] -= less;
                }
                let made = |w: usize| cores(w, parts[w]) / option.resources_per_row[w][0];
                ((made(0) + made(1)) / costs.demands[j]).min(1.0) / costs.weights[j]
            };
            let (x, y) = (share(first), share(second));
            best = best.max(fed(0, x, y).min(fed(1, 1.0 - x, 1.0 - y)));
        }
    }
    best.min(1.0)
}

fn quota(name: &str, cores: f64) -> TenantProblem {
    TenantProblem { name: name.to_owned(), cores: Some(cores), cache_bytes: None }
}

#[test]
fn quotas_of_two_tenants_match_a_grid_search() {
    let mut bound = 0;
    for seed in 0..40 {
        let mut random = super::super::testing::TestRandom::new(seed);
        let mut made = |id| {
            job(
                id,
                random.log_uniform(500.0, 5000.0),
                &[random.log_uniform(0.3, 5.0), random.log_uniform(0.3, 5.0)],
            )
        };
        let mut jobs = vec![made(1), made(2)];
        (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(1));
        let mut problem = cluster(&[(2.0, 2), (4.0, 1)], jobs);
        let free =
            solve_selection(&Costs::new(&problem_without_tenants(&problem)), &[0, 0], &NoDeadline).unwrap();
        problem.tenants =
            vec![quota("a", random.log_uniform(0.3, 6.0)), quota("b", random.log_uniform(0.3, 6.0))];
        problem.jobs[1].weight = [1.0, 3.0][seed as usize % 2];
        let costs = Costs::new(&problem);
        let fractional = solve_selection(&costs, &[0, 0], &NoDeadline).unwrap();
        let found = fractional.objective.smallest_fed;
        bound += u32::from(found < 0.95 * free.objective.smallest_fed);
        let grid = brute_with_quota(&costs, 200);
        assert!(
            found >= grid - 1e-3 && found <= grid * 1.03 + 0.02,
            "seed {seed}: {found}, on the grid {grid}"
        );
    }
    assert!(bound > 10, "quotas make a difference in only {bound} problems");
}

fn problem_without_tenants(problem: &Problem) -> Problem {
    let mut free = problem.clone();
    free.jobs.iter_mut().for_each(|job| job.tenant = None);
    Problem { tenants: Vec::new(), ..free }
}

#[test]
fn jobs_that_fill_a_quota_do_not_limit_other_jobs() {
    // Tenant a has two jobs and one core. The other jobs want more than the cluster has and must have equal fed
    // fractions.
    let mut jobs: Vec<_> = (1..=4).map(|id| job(id, 4000.0, &[1.0])).collect();
    (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(0));
    let problem = Problem { tenants: vec![quota("a", 1.0)], ..cluster(&[(5.0, 1)], jobs) };
    let fractional = solve_selection(&Costs::new(&problem), &[0, 0, 0, 0], &NoDeadline).unwrap();
    let expected = [0.125, 0.125, 0.5, 0.5];
    for (fed, expected) in fractional.fed_fractions.iter().zip(expected) {
        assert!((fed - expected).abs() < 1e-3, "{:?}", fractional.fed_fractions);
    }
}

#[test]
fn a_quota_is_used_first_on_the_type_with_fewer_cores_per_row() {
    let mut alone = job(1, 1e6, &[2.0, 1.0]);
    alone.tenant = Some(0);
    let problem = Problem { tenants: vec![quota("a", 3.0)], ..cluster(&[(4.0, 1), (2.0, 1)], vec![alone]) };
    let costs = Costs::new(&problem);
    // Two cores at 1,000 rows/s each, and one at 500.
    assert!((costs.rate_alone(&costs.options[0][0]) - 2500.0).abs() < 1e-6);
    let fractional = solve_selection(&costs, &[0], &NoDeadline).unwrap();
    let rows: f64 = fractional.rows_per_s[0].iter().sum();
    assert!((rows - 2500.0).abs() < 1.0, "{:?}", fractional.rows_per_s);
}

#[test]
fn rates_never_exceed_a_capacity() {
    for seed in 0..400 {
        let problem = if seed < 200 { small(seed, 1) } else { with_tenants(seed, 1) };
        let costs = Costs::new(&problem);
        let chosen = vec![0; costs.job_count()];
        let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
        let fractional = solve_selection(&costs, &chosen, &NoDeadline).unwrap();
        let load = largest_load(&costs, &options, &fractional.rows_per_s);
        assert!(load <= 1.0 + 1e-9, "seed {seed}: {load}");
    }
}

#[test]
fn the_cheaper_type_is_used_if_both_can_feed_the_job() {
    let mut problem = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 1000.0, &[1.0, 1.0])]);
    problem.worker_types[0].core_hour = 0.05;
    problem.worker_types[1].core_hour = 0.03;
    let fractional = solve_selection(&Costs::new(&problem), &[0], &NoDeadline).unwrap();
    assert!(
        fractional.rows_per_s[0][0] < 1.0 && fractional.rows_per_s[0][1] > 999.0,
        "{:?}",
        fractional.rows_per_s
    );
}

#[test]
fn the_total_is_maximised_after_the_smallest_fed_fraction() {
    // Job 1 reaches a fed fraction of at most 0.1; job 2 uses all remaining cores.
    let mut slow = job(1, 1000.0, &[1.0]);
    slow.operators[0].limit = Some(1);
    slow.operators[0].latency_s = 0.009;
    let problem = cluster(&[(4.0, 1)], vec![slow, job(2, 5000.0, &[1.0])]);
    let fractional = solve_selection(&Costs::new(&problem), &[0, 0], &NoDeadline).unwrap();
    assert!(
        (fractional.fed_fractions[0] - 0.1).abs() < 1e-4 && (fractional.fed_fractions[1] - 0.78).abs() < 1e-3,
        "{:?}",
        fractional.fed_fractions
    );
}

/// Tenants with two jobs each. The jobs want more than their quotas, and more than the better type has.
fn crowded(tenants: usize) -> Problem {
    let mut jobs = Vec::new();
    for tenant in 0..tenants {
        for place in 0..2 {
            let id = (2 * tenant + place) as u64 + 1;
            jobs.push(JobProblem { tenant: Some(tenant), ..job(id, 9000.0, &[1.0, 2.0]) });
        }
    }
    let tenants = (0..tenants).map(|tenant| quota(&tenant.to_string(), 6.0)).collect();
    Problem { tenants, ..cluster(&[(4.0, 1), (8.0, 4)], jobs) }
}

#[test]
fn a_deadline_between_two_tenants_ends_the_work() {
    let problem = crowded(20);
    let costs = Costs::new(&problem);
    let chosen = vec![0; costs.job_count()];
    assert!(solve_selection(&costs, &chosen, &NoDeadline).is_some());
    assert!(solve_selection(&costs, &chosen, &CheckLimit::new(5)).is_none());
}

#[test]
fn a_deadline_between_two_rounds_leaves_feasible_rates() {
    // The first round fixes the limited job; later rounds would raise the others.
    let mut slow = job(1, 1000.0, &[1.0]);
    slow.operators[0].limit = Some(1);
    slow.operators[0].latency_s = 0.009;
    let problem = cluster(&[(4.0, 1)], vec![slow, job(2, 5000.0, &[1.0]), job(3, 5000.0, &[1.0])]);
    let costs = Costs::new(&problem);
    let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
    let checks = std::cell::Cell::new(0);
    let is_over = || {
        checks.set(checks.get() + 1);
        true
    };
    let early = solve_selection(&costs, &[0, 0, 0], &is_over).unwrap();
    assert_eq!(checks.get(), 1);
    assert!(largest_load(&costs, &options, &early.rows_per_s) <= 1.0 + 1e-9);
    assert!((early.fed_fractions[0] - 0.1).abs() < 1e-4, "{:?}", early.fed_fractions);
}

#[test]
fn the_shortcut_for_a_quota_matches_the_linear_problem() {
    let (mut compared, mut left) = (0, 0);
    for seed in 0..400 {
        let mut problem = with_tenants(seed, 1);
        problem.jobs.iter_mut().for_each(|job| job.tenant = Some(0));
        problem.tenants[0].cores = problem.tenants[0].cores.or(Some(2.0));
        let costs = Costs::new(&problem);
        let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
        let alone: Vec<f64> = (0..options.len()).map(|j| costs.fed_fraction_alone(j, options[j])).collect();
        let all: Vec<usize> = (0..options.len()).collect();
        let own = costs.for_tenant(0, &all, &options);
        let Some(found) = fed_fractions_within_quota(&own, &options, &alone) else {
            left += 1;
            continue;
        };
        compared += 1;
        let solved = LinearProblem::new(&own, &options).max_min_fed_fractions(&alone, &NoDeadline).unwrap();
        for (found, solved) in found.iter().zip(&solved) {
            assert!((found - solved.min(1.0)).abs() < 1e-3, "seed {seed}: {found}, solved {solved}");
        }
    }
    assert!(compared > 50 && left > 20, "{compared} compared, {left} need the solver");
}
