//! The search for caches against brute force.

use super::super::solve::NoDeadline;
use super::super::testing::{cluster, job, operator, small, with_tenants};
use super::*;
use crate::plan::{CutProblem, Problem, TenantProblem};

/// Every combination.
fn brute(costs: &Costs) -> CacheSelection {
    let mut search = Search { costs, deadline: &NoDeadline, best: None, solves_left: u32::MAX };
    search.try_all();
    search.best.unwrap()
}

fn searched(problem: &Problem, costs: &Costs) -> CacheSelection {
    let settings = PlannerSettings { enumerate_at_most: 0, ..problem.settings };
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
fn the_search_keeps_to_quotas_and_near_brute_force_on_200_problems() {
    let mut bound = 0;
    for seed in 0..200 {
        let problem = with_tenants(seed, 1 + (seed % 3 == 0) as usize);
        let costs = Costs::new(&problem);
        let (best, found) = (brute(&costs), searched(&problem, &costs));
        for ways in [&best.ways, &found.ways, &greedy(&costs, &first(&costs), SHORT)] {
            let kept = kept_for(&costs, ways);
            let within = kept.iter().zip(&costs.tenant_room).all(|(kept, room)| *kept <= room * (1.0 + 1e-9));
            assert!(within, "seed {seed}: {kept:?} of {:?}", costs.tenant_room);
        }
        let free = Costs { tenant_room: vec![f64::INFINITY; costs.tenant_room.len()], ..costs.clone() };
        bound += u32::from(brute(&free).ways != best.ways);
        assert!(
            !best.objective.is_better(&found.objective, 0.01),
            "seed {seed}: found {:?} {:?}, best {:?} {:?}",
            found.ways,
            found.objective,
            best.ways,
            best.objective
        );
    }
    assert!(bound > 10, "quotas change only {bound} choices");
}

#[test]
fn what_the_store_keeps_counts_once_however_many_workers_there_are() {
    let mut made = job(1, 1000.0, &[2.0]);
    made.operators.push(operator("augment", &[0.2]));
    // The size of a copy on each of four workers.
    made.cuts =
        vec![CutProblem { after: 0, bytes: 4e9, bytes_per_row: 1e4, key: 9, ..CutProblem::default() }];
    made.tenant = Some(0);
    let tenants = vec![TenantProblem { cache_bytes: Some(1.5e9), ..TenantProblem::default() }];
    let problem =
        Problem { tenants, copies: 4.0, store_cache_bytes: 1e12, ..cluster(&[(2.0, 4)], vec![made]) };
    let costs = Costs::new(&problem);
    let tier = |way: usize| costs.ways[0][way].kept.map(|kept| kept.tier);
    let fitting: Vec<_> = (0..costs.ways[0].len()).filter(|way| fits(&costs, &[*way])).map(tier).collect();
    assert_eq!(fitting, [None, Some(CacheTier::Store)]);
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
