//! Sharing without a solver.

use super::super::testing::{cluster, job, small};
use super::*;

#[test]
fn it_is_feasible_on_any_problem() {
    for seed in 0..200 {
        let costs = Costs::new(&small(seed, 1));
        for way in 0..2 {
            let chosen: Vec<usize> = costs.ways.iter().map(|ways| way.min(ways.len() - 1)).collect();
            let ways: Vec<&Way> = chosen.iter().enumerate().map(|(j, way)| &costs.ways[j][*way]).collect();
            let fluid = fill(&costs, &chosen);
            assert!(load(&costs, &ways, &fluid.rows) <= 1.0 + 1e-9, "seed {seed}");
            assert!(fluid.objective.smallest_fed > 0.0, "seed {seed}");
        }
    }
}

#[test]
fn jobs_that_need_less_leave_it_to_the_others() {
    let costs = Costs::new(&cluster(&[(2.0, 1)], vec![job(1, 100.0, &[1.0]), job(2, 9000.0, &[1.0])]));
    let fluid = fill(&costs, &[0, 0]);
    let share = 2000.0 / 9100.0;
    assert!(fluid.fed.iter().all(|fed| (fed - share).abs() < 1e-6), "{:?}", fluid.fed);
}
