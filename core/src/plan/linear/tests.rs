//! The linear problem against brute force.

use super::super::testing::{cluster, job, small};
use super::*;

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
        let found = share(&costs, &[0, 0]).unwrap().objective.smallest_fed;
        let grid = brute(&costs);
        assert!(
            found >= grid - 1e-4 && found <= grid * 1.03 + 0.02,
            "seed {seed}: {found}, on a grid {grid}"
        );
    }
}

#[test]
fn rates_never_exceed_a_capacity() {
    for seed in 0..200 {
        let costs = Costs::new(&small(seed, 1));
        let chosen = vec![0; costs.jobs()];
        let ways: Vec<&Way> = costs.ways.iter().map(|ways| &ways[0]).collect();
        let fluid = share(&costs, &chosen).unwrap();
        let load = load(&costs, &ways, &fluid.rows);
        assert!(load <= 1.0 + 1e-9, "seed {seed}: {load}");
    }
}

#[test]
fn the_cheaper_type_is_taken_when_both_could_feed() {
    let mut problem = cluster(&[(4.0, 1), (4.0, 1)], vec![job(1, 1000.0, &[1.0, 1.0])]);
    problem.worker_types[0].core_hour = 0.05;
    problem.worker_types[1].core_hour = 0.03;
    let fluid = share(&Costs::new(&problem), &[0]).unwrap();
    assert!(fluid.rows[0][0] < 1.0 && fluid.rows[0][1] > 999.0, "{:?}", fluid.rows);
}

#[test]
fn total_grows_once_the_smallest_cannot() {
    // Job 1 reaches a tenth at most; job 2 then has all that is left.
    let mut slow = job(1, 1000.0, &[1.0]);
    slow.operators[0].limit = Some(1);
    slow.operators[0].latency_s = 0.009;
    let problem = cluster(&[(4.0, 1)], vec![slow, job(2, 5000.0, &[1.0])]);
    let fluid = share(&Costs::new(&problem), &[0, 0]).unwrap();
    assert!((fluid.fed[0] - 0.1).abs() < 1e-4 && (fluid.fed[1] - 0.78).abs() < 1e-3, "{:?}", fluid.fed);
}
