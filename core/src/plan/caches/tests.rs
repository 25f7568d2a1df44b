//! The search for caches against brute force.

use super::super::solve::NoDeadline;
use super::super::testing::{cluster, job, operator, small};
use super::*;
use crate::plan::{CutProblem, Problem};

/// Every combination.
fn brute(costs: &Costs) -> Chosen {
    let mut search = Search { costs, deadline: &NoDeadline, best: None, solves_left: u32::MAX };
    search.try_all();
    search.best.unwrap()
}

fn searched(problem: &Problem, costs: &Costs) -> Chosen {
    let settings = Settings { enumerate_at_most: 0, ..problem.settings };
    choose(costs, &settings, None, &NoDeadline).unwrap()
}

#[test]
fn the_search_is_within_one_percent_of_brute_force_on_200_problems() {
    let mut with_caches = 0;
    for seed in 0..200 {
        let problem = small(seed, 1 + (seed % 3 == 0) as usize);
        let costs = Costs::new(&problem);
        let (best, found) = (brute(&costs), searched(&problem, &costs));
        with_caches += u32::from(!kept(&costs, &best.ways).is_empty());
        assert!(
            !best.objective.is_better(&found.objective, 0.01),
            "seed {seed}: found {:?} {:?}, best {:?} {:?}",
            found.ways,
            found.objective,
            best.ways,
            best.objective
        );
    }
    assert!(with_caches > 60, "only {with_caches} problems are better with a cache");
}

#[test]
fn a_second_job_with_the_prefix_pays_nothing() {
    let with_cut = |id| {
        let mut made = job(id, 1000.0, &[2.0]);
        made.operators.push(operator("augment", &[0.2]));
        made.cuts =
            vec![CutProblem { after: 0, bytes: 2.5e9, bytes_per_row: 1e4, key: 9, ..CutProblem::default() }];
        made
    };
    // There is room for one copy only.
    let problem = cluster(&[(2.0, 1)], vec![with_cut(1), with_cut(2)]);
    let costs = Costs::new(&problem);
    let found = searched(&problem, &costs);
    assert_eq!(kept(&costs, &found.ways).len(), 1);
    assert_eq!(found.ways, [1, 1]);
    let alone = Costs::new(&cluster(&[(2.0, 1)], vec![with_cut(1)]));
    assert_eq!(price(&costs, &found.ways), price(&alone, &[1]));
}
