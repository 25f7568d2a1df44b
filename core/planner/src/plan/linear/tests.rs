//! The linear problem against brute force.

use super::super::testing::{cluster, job, small, with_tenants};
use super::*;
use crate::plan::{CheckLimit, JobProblem, NoDeadline, Problem, TenantProblem};

/// The largest smallest weighted fed fraction on a grid: job a takes a share of each type's cores, b the rest.
fn brute(costs: &Costs) -> f64 {
    let steps = 200;
    let mut best: f64 = 0.0;
    let give = |j: usize, w: usize, share: f64| {
        share * costs.counts[w] * costs.has[w][0] / costs.ways[j][0].per_row[w][0] / costs.demand[j]
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
fn two_jobs_on_two_types_reach_what_a_grid_finds() {
    for seed in 0..40 {
        let mut dice = super::super::testing::Dice::new(seed);
        let mut made = |id| job(id, dice.about(500.0, 5000.0), &[dice.about(0.3, 5.0), dice.about(0.3, 5.0)]);
        let jobs = vec![made(1), made(2)];
        let mut problem = cluster(&[(2.0, 2), (4.0, 1)], jobs);
        problem.jobs[1].weight = [1.0, 3.0][seed as usize % 2];
        let costs = Costs::new(&problem);
        let found = share(&costs, &[0, 0], &NoDeadline).unwrap().objective.smallest_fed;
        let grid = brute(&costs);
        assert!(
            found >= grid - 1e-4 && found <= grid * 1.03 + 0.02,
            "seed {seed}: {found}, on a grid {grid}"
        );
    }
}

/// The largest smallest weighted fed fraction on a grid: each job takes a share of each type's cores, and jobs of a tenant no
/// more together than its quota.
fn brute_with_quota(costs: &Costs, steps: u32) -> f64 {
    let share = |step: u32| f64::from(step) / f64::from(steps);
    let mut best: f64 = 0.0;
    for first in 0..=steps {
        for second in 0..=steps {
            // Job a has x of type 0 and y of type 1, job b the rest, as far as quotas go: what is over is given back at best
            // from the type on which a row takes more.
            let fed = |j: usize, x: f64, y: f64| {
                let way = &costs.ways[j][0];
                let mut parts = [x, y].map(|part| part.max(0.0));
                let cores = |w: usize, part: f64| part * costs.counts[w] * costs.has[w][0];
                let mut over = cores(0, parts[0]) + cores(1, parts[1]) - way.quota;
                let dear = usize::from(way.per_row[1][0] > way.per_row[0][0]);
                for w in [dear, 1 - dear] {
                    let less = (over / (costs.counts[w] * costs.has[w][0])).clamp(0.0, parts[w]);
                    over -= cores(w, less);
                    parts[w] -= less;
                }
                let made = |w: usize| cores(w, parts[w]) / way.per_row[w][0];
                ((made(0) + made(1)) / costs.demand[j]).min(1.0) / costs.weights[j]
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
fn quotas_of_two_tenants_reach_what_a_grid_finds() {
    let mut bound = 0;
    for seed in 0..40 {
        let mut dice = super::super::testing::Dice::new(seed);
        let mut made = |id| job(id, dice.about(500.0, 5000.0), &[dice.about(0.3, 5.0), dice.about(0.3, 5.0)]);
        let mut jobs = vec![made(1), made(2)];
        (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(1));
        let mut problem = cluster(&[(2.0, 2), (4.0, 1)], jobs);
        let free = share(&Costs::new(&problem_without_tenants(&problem)), &[0, 0], &NoDeadline).unwrap();
        problem.tenants = vec![quota("a", dice.about(0.3, 6.0)), quota("b", dice.about(0.3, 6.0))];
        problem.jobs[1].weight = [1.0, 3.0][seed as usize % 2];
        let costs = Costs::new(&problem);
        let fluid = share(&costs, &[0, 0], &NoDeadline).unwrap();
        let found = fluid.objective.smallest_fed;
        bound += u32::from(found < 0.95 * free.objective.smallest_fed);
        let grid = brute_with_quota(&costs, 200);
        assert!(
            found >= grid - 1e-3 && found <= grid * 1.03 + 0.02,
            "seed {seed}: {found}, on a grid {grid}"
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
fn jobs_that_fill_a_quota_together_hold_up_nobody_else() {
    // Tenant a: two jobs on one core. Its neighbours want more than there is, and are to be fed alike.
    let mut jobs: Vec<_> = (1..=4).map(|id| job(id, 4000.0, &[1.0])).collect();
    (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(0));
    let problem = Problem { tenants: vec![quota("a", 1.0)], ..cluster(&[(5.0, 1)], jobs) };
    let fluid = share(&Costs::new(&problem), &[0, 0, 0, 0], &NoDeadline).unwrap();
    let expected = [0.125, 0.125, 0.5, 0.5];
    for (fed, expected) in fluid.fed.iter().zip(expected) {
        assert!((fed - expected).abs() < 1e-3, "{:?}", fluid.fed);
    }
}

#[test]
fn a_quota_goes_first_to_the_type_on_which_rows_take_less() {
    let mut alone = job(1, 1e6, &[2.0, 1.0]);
    alone.tenant = Some(0);
    let problem = Problem { tenants: vec![quota("a", 3.0)], ..cluster(&[(4.0, 1), (2.0, 1)], vec![alone]) };
    let costs = Costs::new(&problem);
    // Two cores at 1,000 rows/s, then one at 500.
    assert!((costs.alone(&costs.ways[0][0]) - 2500.0).abs() < 1e-6);
    let fluid = share(&costs, &[0], &NoDeadline).unwrap();
    let rows: f64 = fluid.rows[0].iter().sum();
    assert!((rows - 2500.0).abs() < 1.0, "{:?}", fluid.rows);
}

#[test]
fn rates_never_exceed_a_capacity() {
    for seed in 0..400 {
        let problem = if seed < 200 { small(seed, 1) } else { with_tenants(seed, 1) };
        let costs = Costs::new(&problem);
        let chosen = vec![0; costs.jobs()];
        let ways: Vec<&ExecutionOption> = costs.ways.iter().map(|ways| &ways[0]).collect();
        let fluid = share(&costs, &chosen, &NoDeadline).unwrap();
        let load = load(&costs, &ways, &fluid.rows);
        assert!(load <= 1.0 + 1e-9, "seed {seed}: {load}");
    }
}

#[test]
fn the_cheaper_type_is_taken_when_both_could_feed() {
    let mut problem = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 1000.0, &[1.0, 1.0])]);
    problem.worker_types[0].core_hour = 0.05;
    problem.worker_types[1].core_hour = 0.03;
    let fluid = share(&Costs::new(&problem), &[0], &NoDeadline).unwrap();
    assert!(fluid.rows[0][0] < 1.0 && fluid.rows[0][1] > 999.0, "{:?}", fluid.rows);
}

#[test]
fn total_grows_once_the_smallest_cannot() {
    // Job 1 reaches a tenth at most; job 2 then has all that is left.
    let mut slow = job(1, 1000.0, &[1.0]);
    slow.operators[0].limit = Some(1);
    slow.operators[0].latency_s = 0.009;
    let problem = cluster(&[(4.0, 1)], vec![slow, job(2, 5000.0, &[1.0])]);
    let fluid = share(&Costs::new(&problem), &[0, 0], &NoDeadline).unwrap();
    assert!((fluid.fed[0] - 0.1).abs() < 1e-4 && (fluid.fed[1] - 0.78).abs() < 1e-3, "{:?}", fluid.fed);
}

/// Tenants with two jobs each, which want more than their quotas, and more than there is of the type that suits them.
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
fn time_that_ends_between_two_tenants_is_heeded() {
    let problem = crowded(20);
    let costs = Costs::new(&problem);
    let chosen = vec![0; costs.jobs()];
    assert!(share(&costs, &chosen, &NoDeadline).is_some());
    assert!(share(&costs, &chosen, &CheckLimit::new(5)).is_none());
}

#[test]
fn time_that_ends_between_two_rounds_leaves_feasible_rates() {
    // The first round ends at the limited job, others would raise the rest.
    let mut slow = job(1, 1000.0, &[1.0]);
    slow.operators[0].limit = Some(1);
    slow.operators[0].latency_s = 0.009;
    let problem = cluster(&[(4.0, 1)], vec![slow, job(2, 5000.0, &[1.0]), job(3, 5000.0, &[1.0])]);
    let costs = Costs::new(&problem);
    let ways: Vec<&ExecutionOption> = costs.ways.iter().map(|ways| &ways[0]).collect();
    let asked = std::cell::Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        true
    };
    let hasty = share(&costs, &[0, 0, 0], &is_over).unwrap();
    assert_eq!(asked.get(), 1);
    assert!(load(&costs, &ways, &hasty.rows) <= 1.0 + 1e-9);
    assert!((hasty.fed[0] - 0.1).abs() < 1e-4, "{:?}", hasty.fed);
}

#[test]
fn jobs_within_a_quota_reach_what_the_linear_problem_finds() {
    let (mut compared, mut left) = (0, 0);
    for seed in 0..400 {
        let mut problem = with_tenants(seed, 1);
        problem.jobs.iter_mut().for_each(|job| job.tenant = Some(0));
        problem.tenants[0].cores = problem.tenants[0].cores.or(Some(2.0));
        let costs = Costs::new(&problem);
        let ways: Vec<&ExecutionOption> = costs.ways.iter().map(|ways| &ways[0]).collect();
        let alone: Vec<f64> = (0..ways.len()).map(|j| costs.fed_alone(j, ways[j])).collect();
        let all: Vec<usize> = (0..ways.len()).collect();
        let own = costs.of_tenant(0, &all, &ways);
        let Some(found) = within_quota(&own, &ways, &alone) else {
            left += 1;
            continue;
        };
        compared += 1;
        let solved = Served::new(&own, &ways).level(&alone, &NoDeadline).unwrap();
        for (found, solved) in found.iter().zip(&solved) {
            assert!((found - solved.min(1.0)).abs() < 1e-3, "seed {seed}: {found}, solved {solved}");
        }
    }
    assert!(compared > 50 && left > 20, "{compared} compared, {left} left to the solver");
}
