//! Wanted numbers of workers of pools with limits.

use feedline_data::ids::WorkerId;
use proptest::prelude::*;

use super::super::costs::ExecutionOption;
use super::super::testing::{TestRandom, cluster, job};
use super::super::wanted::wanted_workers;
use super::*;
use crate::plan::{JobProblem, NoDeadline, WorkerSlot};

/// A pool with its limits and its workers of four cores.
#[derive(Clone, Copy)]
struct TestPool {
    min_workers: u32,
    max_workers: u32,
    present: u32,
}

const fn pool(min_workers: u32, max_workers: u32, present: u32) -> TestPool {
    TestPool { min_workers, max_workers, present }
}

/// Pools `pool0`, `pool1` and so on, with one type of worker each.
fn pools_of(pools: &[TestPool], jobs: Vec<JobProblem>) -> Problem {
    let types: Vec<(f64, u32)> = pools.iter().map(|pool| (4.0, pool.present)).collect();
    let mut problem = cluster(&types, jobs);
    for (index, (kind, TestPool { min_workers, max_workers, .. })) in
        problem.worker_types.iter_mut().zip(pools).enumerate()
    {
        kind.pool = format!("pool{index}");
        kind.max_workers = 10_000;
        let (min_workers, max_workers) = (*min_workers, *max_workers);
        problem.pools.push(PoolProblem { name: kind.pool.clone(), min_workers, max_workers });
    }
    problem
}

fn count(problem: &Problem) -> Vec<u32> {
    problem.check().expect("the problem is consistent");
    let costs = Costs::new(problem);
    let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
    wanted_workers(problem, &costs, &options, &NoDeadline).into_iter().map(|wanted| wanted.wanted).collect()
}

/// A job that needs this number of workers of four cores at 90 % utilisation, if a row needs 1 ms on each of `types` types.
fn job_for(workers: f64, types: usize) -> JobProblem {
    job(1, 3_600.0 * workers, &vec![1.0; types])
}

#[test]
fn demand_beyond_the_maximum_of_a_pool_moves_to_another() {
    let problem = |workers: f64| pools_of(&[pool(0, 3, 1), pool(0, 8, 1)], vec![job_for(workers, 2)]);
    assert_eq!(count(&problem(1.5)), [1, 1], "the present workers suffice");
    assert_eq!(count(&problem(3.5)), [3, 1], "the first pool grows");
    assert_eq!(count(&problem(6.5)), [3, 4]);
    assert_eq!(count(&problem(11.0)), [3, 8]);
}

#[test]
fn demand_beyond_all_maximums_is_visible() {
    let wanted = count(&pools_of(&[pool(0, 3, 1), pool(0, 8, 1)], vec![job_for(20.0, 2)]));
    assert_eq!(wanted.iter().sum::<u32>(), 20);
    assert!(wanted[0] >= 3 && wanted[1] >= 8, "{wanted:?}");
    let single = pools_of(&[pool(1, 3, 1)], vec![job_for(20.0, 1)]);
    assert_eq!(count(&single), [20]);
}

#[test]
fn a_pool_with_workers_grows_first_and_then_the_order_decides() {
    let job = || vec![job_for(2.5, 3)];
    assert_eq!(count(&pools_of(&[pool(0, 8, 0), pool(0, 8, 1), pool(0, 8, 0)], job())), [0, 3, 0]);
    assert_eq!(count(&pools_of(&[pool(0, 8, 0), pool(0, 8, 0), pool(0, 8, 0)], job())), [3, 0, 0]);
    assert_eq!(count(&pools_of(&[pool(0, 2, 0), pool(0, 8, 0), pool(0, 8, 0)], job())), [2, 1, 0]);
}

#[test]
fn a_later_pool_shrinks_first() {
    assert_eq!(count(&pools_of(&[pool(0, 8, 3), pool(0, 8, 3)], vec![job_for(2.5, 2)])), [3, 0]);
}

#[test]
fn the_cheapest_useful_core_wins() {
    let mut cheap = pools_of(&[pool(0, 8, 0), pool(0, 8, 0)], vec![job_for(2.5, 2)]);
    (cheap.worker_types[0].core_hour, cheap.worker_types[1].core_hour) = (0.04, 0.012);
    assert_eq!(count(&cheap), [0, 3]);
    cheap.pools[1].max_workers = 2;
    assert_eq!(count(&cheap), [1, 2], "the rest moves to the expensive pool");
    // A row needs four times the CPU time in the cheap pool.
    let mut slow = pools_of(&[pool(0, 8, 0), pool(0, 8, 0)], vec![job(1, 9_000.0, &[1.0, 4.0])]);
    (slow.worker_types[0].core_hour, slow.worker_types[1].core_hour) = (0.04, 0.012);
    assert_eq!(count(&slow), [3, 0]);
}

#[test]
fn the_workers_of_a_minimum_are_used_first_but_only_if_they_are_needed() {
    let mut problem = pools_of(&[pool(0, 8, 0), pool(2, 8, 2)], vec![job_for(1.5, 2)]);
    (problem.worker_types[0].core_hour, problem.worker_types[1].core_hour) = (0.012, 0.04);
    assert_eq!(count(&problem), [0, 2], "the expensive workers run in any case");
    problem.jobs[0].demand_rows_per_s = Some(3_600.0 * 4.5);
    assert_eq!(count(&problem), [3, 2]);
    problem.jobs[0].demand_rows_per_s = Some(360.0);
    assert_eq!(count(&problem), [0, 1]);
}

#[test]
fn workers_outside_the_pools_of_the_scaler_are_used_but_not_added() {
    let mut problem = pools_of(&[pool(0, 8, 1), pool(0, 8, 2)], vec![job_for(4.5, 2)]);
    problem.pools.truncate(1);
    assert_eq!(count(&problem), [3, 2]);
    problem.jobs[0].demand_rows_per_s = Some(3_600.0 * 1.5);
    assert_eq!(count(&problem), [0, 2], "they cannot stop");
}

#[test]
fn the_types_of_one_pool_share_its_limits() {
    let mut problem = pools_of(&[pool(0, 4, 2), pool(0, 8, 1), pool(0, 8, 0)], vec![job_for(6.5, 3)]);
    problem.worker_types[1].pool = "pool0".to_owned();
    problem.pools.remove(1);
    let wanted = count(&problem);
    assert_eq!((wanted[0] + wanted[1], wanted[2]), (4, 3), "{wanted:?}");
}

#[test]
fn a_pool_of_at_most_no_workers_stays_empty() {
    assert_eq!(count(&pools_of(&[pool(0, 0, 0), pool(0, 2, 1)], vec![job_for(1.5, 2)])), [0, 2]);
}

#[test]
fn large_pools_have_no_numerical_noise() {
    let empty = pools_of(&[pool(0, 400, 0), pool(0, 400, 0), pool(0, 400, 0)], vec![job_for(450.5, 3)]);
    assert_eq!(count(&empty), [400, 51, 0]);
    let some = |workers: f64| {
        count(&pools_of(&[pool(0, 400, 300), pool(0, 400, 120), pool(1, 400, 0)], vec![job_for(workers, 3)]))
    };
    assert_eq!(some(250.5), [250, 0, 1], "the minimum comes first");
    assert_eq!(some(450.5), [330, 120, 1]);
    let huge = pools_of(&[pool(0, 4_000, 0), pool(0, 4_000, 0)], vec![job_for(4_500.5, 2)]);
    assert_eq!(count(&huge), [4_000, 501]);
}

/// Two or three pools with random limits and workers, and one or two jobs with random costs on each type.
fn random_pools(seed: u64) -> Problem {
    let mut random = TestRandom::new(seed);
    let pools: Vec<TestPool> = (0..2 + random.below(2))
        .map(|_| {
            let max_workers = random.below(6);
            pool(random.below(max_workers + 1), max_workers, random.below(max_workers + 1))
        })
        .collect();
    let jobs = (0..1 + random.below(2)).map(|id| {
        let cpu_ms: Vec<f64> = pools.iter().map(|_| random.log_uniform(0.5, 1.5)).collect();
        job(u64::from(id) + 1, random.log_uniform(500.0, 20_000.0), &cpu_ms)
    });
    let jobs = jobs.collect();
    let mut problem = pools_of(&pools, jobs);
    for kind in &mut problem.worker_types {
        kind.core_hour = random.log_uniform(0.01, 0.08);
    }
    problem
}

/// A part of a worker that rounding may ignore.
const NOISE: f64 = 0.02;

/// Whether workers with these numbers, and a part of a worker of each type, can compute all rows at the target utilisation.
/// Each job runs where a row needs the least CPU time relative to the other job, which is optimal for two jobs.
fn can_feed(problem: &Problem, numbers: &[u32], part: f64) -> bool {
    let used = problem.settings.target_utilisation;
    let mut cores: Vec<f64> = numbers.iter().map(|number| 4.0 * used * (f64::from(*number) + part)).collect();
    let cpu_s = |job: &JobProblem, w: usize| job.operators[0].cpu_s[w];
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    let ratio = |w: &usize| match problem.jobs.as_slice() {
        [first, second] => cpu_s(first, *w) / cpu_s(second, *w),
        _ => 1.0,
    };
    order.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let mut missing: Vec<f64> =
        problem.jobs.iter().map(|job| job.demand_rows_per_s.expect("each job has a demand")).collect();
    for (j, job) in problem.jobs.iter().enumerate() {
        // The first job uses the types in the order of its advantage, and the second job the rest.
        for w in &order {
            let rows = missing[j].min(cores[*w] / cpu_s(job, *w));
            missing[j] -= rows;
            cores[*w] -= rows * cpu_s(job, *w);
        }
    }
    missing.iter().all(|rows| *rows < 1e-6)
}

/// All numbers of workers within the limits of the pools.
fn allowed_numbers(problem: &Problem) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    for pool in &problem.pools {
        let extend = |numbers: &Vec<u32>| -> Vec<Vec<u32>> {
            (0..=pool.max_workers).map(|number| [numbers.as_slice(), &[number]].concat()).collect()
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}

/// The cost of workers without preferences, in the scale of [`SizeVariables::cost`].
fn price(problem: &Problem, numbers: &[u32]) -> f64 {
    let mut price = 0.0;
    for (w, number) in numbers.iter().enumerate() {
        let new = 4.0 * problem.worker_types[w].core_hour;
        let present = problem.workers.iter().filter(|worker| worker.worker_type == w).count() as u32;
        let kept = present.min(*number);
        let refunded = f64::from(problem.pools[w].min_workers.min(*number)) * (1.0 - UNAVOIDABLE_COST_FACTOR);
        price +=
            new * (EXISTING_WORKER_COST_FACTOR * (f64::from(kept) - refunded) + f64::from(*number - kept));
    }
    price
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The solution of the linear problem is rounded up by less than one worker of each type.
    #[test]
    fn wanted_numbers_match_an_exhaustive_search(seed in any::<u64>()) {
        let problem = random_pools(seed);
        let wanted = count(&problem);
        let is_within = wanted.iter().zip(&problem.pools).all(|(wanted, pool)| *wanted <= pool.max_workers);
        let allowed = allowed_numbers(&problem);
        let sufficient = allowed.iter().filter(|numbers| can_feed(&problem, numbers, 0.0));
        let best = sufficient.map(|numbers| price(&problem, numbers)).min_by(f64::total_cmp);
        if let Some(best) = best {
            prop_assert!(is_within, "{wanted:?} exceed the maximums although the pools suffice");
            prop_assert!(can_feed(&problem, &wanted, NOISE), "{wanted:?} do not feed all jobs");
            let rounding: f64 = problem.worker_types.iter().map(|kind| 4.0 * kind.core_hour).sum();
            let price = price(&problem, &wanted);
            prop_assert!(price <= best + 1.05 * rounding, "{wanted:?} cost {price} instead of {best}");
        } else if !allowed.iter().any(|numbers| can_feed(&problem, numbers, NOISE)) {
            let has_pools = problem.pools.iter().any(|pool| pool.max_workers > 0);
            prop_assert!(!is_within || !has_pools, "{wanted:?} hide that the pools are too small");
        }
    }

    #[test]
    fn equal_problems_have_equal_numbers(seed in any::<u64>()) {
        let problem = random_pools(seed);
        prop_assert_eq!(count(&problem), count(&problem));
    }

    /// If the wanted workers run, the planner wants the same workers.
    #[test]
    fn wanted_numbers_are_stable(seed in any::<u64>()) {
        let mut problem = random_pools(seed);
        let wanted = count(&problem);
        problem.workers.clear();
        let limits: Vec<u32> = problem.pools.iter().map(|pool| pool.max_workers).collect();
        for (worker_type, number) in wanted.iter().zip(&limits).map(|(wanted, most)| wanted.min(most)).enumerate() {
            for _ in 0..*number {
                let id = WorkerId(problem.workers.len() as u64 + 1);
                problem.workers.push(WorkerSlot { id, worker_type });
            }
        }
        let again = count(&problem);
        for (w, (wanted, again)) in wanted.iter().zip(&again).enumerate() {
            let clamp = |number: u32| number.clamp(problem.pools[w].min_workers, limits[w]);
            prop_assert!(clamp(*again) <= clamp(*wanted), "type {w} grows from {wanted} to {again}");
        }
    }
}
