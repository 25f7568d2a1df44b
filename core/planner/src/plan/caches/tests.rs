//! The search for caches against brute force.

use super::super::deadline::NoDeadline;
use super::super::testing::{cluster, job, operator, small, with_tenants};
use super::*;
use crate::plan::{CachePointProblem, Problem, TenantProblem};

/// The best of all combinations.
fn brute(costs: &Costs) -> CacheSelection {
    let mut search = SelectionSearch { costs, deadline: &NoDeadline, best: None, remaining_solves: u32::MAX };
    search.try_all_selections();
    search.best.unwrap()
}

fn searched(problem: &Problem, costs: &Costs) -> CacheSelection {
    let settings = PlannerSettings { max_exhaustive_combinations: 0, ..problem.settings };
    choose_caches(costs, &settings, None, &NoDeadline).unwrap()
}

#[test]
fn the_search_is_within_one_percent_of_brute_force_on_200_problems() {
    let mut with_caches = 0;
    for seed in 0..200 {
        let problem = small(seed, 1 + (seed % 3 == 0) as usize);
        let costs = Costs::new(&problem);
        let (best, found) = (brute(&costs), searched(&problem, &costs));
        with_caches += u32::from(!cached_bytes(&costs, &best.options).is_empty());
        assert!(
            !best.objective.is_better(&found.objective, 0.01),
            "seed {seed}: found {:?} {:?}, best {:?} {:?}",
            found.options,
            found.objective,
            best.options,
            best.objective
        );
    }
    assert!(with_caches > 60, "only {with_caches} problems are better with a cache");
}

#[test]
fn the_search_obeys_quotas_and_is_near_brute_force_on_200_problems() {
    let mut bound = 0;
    for seed in 0..200 {
        let problem = with_tenants(seed, 1 + (seed % 3 == 0) as usize);
        let costs = Costs::new(&problem);
        let (best, found) = (brute(&costs), searched(&problem, &costs));
        for options in [
            &best.options,
            &found.options,
            &greedy_selection(&costs, &first_options(&costs), SHORTAGE_WEIGHT),
        ] {
            let cached = cached_bytes_by_tenant(&costs, options);
            let within = cached
                .iter()
                .zip(&costs.tenant_cache_bytes)
                .all(|(cached, room)| *cached <= room * (1.0 + 1e-9));
            assert!(within, "seed {seed}: {cached:?} of {:?}", costs.tenant_cache_bytes);
        }
        let free = Costs {
            tenant_cache_bytes: vec![f64::INFINITY; costs.tenant_cache_bytes.len()],
            ..costs.clone()
        };
        bound += u32::from(brute(&free).options != best.options);
        assert!(
            !best.objective.is_better(&found.objective, 0.01),
            "seed {seed}: found {:?} {:?}, best {:?} {:?}",
            found.options,
            found.objective,
            best.options,
            best.objective
        );
    }
    assert!(bound > 10, "quotas change only {bound} choices");
}

#[test]
fn rows_cached_in_the_store_count_once_for_all_workers() {
    let mut made = job(1, 1000.0, &[2.0]);
    made.operators.push(operator("augment", &[0.2]));
    // The size of all four copies, one on each worker.
    made.cache_points = vec![CachePointProblem {
        operator_index: 0,
        bytes: 4e9,
        bytes_per_row: 1e4,
        key: 9,
        ..CachePointProblem::default()
    }];
    made.tenant = Some(0);
    let tenants = vec![TenantProblem { cache_bytes: Some(1.5e9), ..TenantProblem::default() }];
    let problem =
        Problem { tenants, cache_copies: 4.0, store_cache_bytes: 1e12, ..cluster(&[(2.0, 4)], vec![made]) };
    let costs = Costs::new(&problem);
    let tier = |option: usize| costs.options[0][option].cache.map(|cache| cache.tier);
    let fitting: Vec<_> =
        (0..costs.options[0].len()).filter(|option| fits_capacity(&costs, &[*option])).map(tier).collect();
    assert_eq!(fitting, [None, Some(CacheTier::Store)]);
}

#[test]
fn a_second_job_with_the_same_prefix_needs_no_more_capacity() {
    let with_cut = |id| {
        let mut made = job(id, 1000.0, &[2.0]);
        made.operators.push(operator("augment", &[0.2]));
        made.cache_points = vec![CachePointProblem {
            operator_index: 0,
            bytes: 2.5e9,
            bytes_per_row: 1e4,
            key: 9,
            ..CachePointProblem::default()
        }];
        made
    };
    // The tier has the capacity for one copy only.
    let problem = cluster(&[(2.0, 1)], vec![with_cut(1), with_cut(2)]);
    let costs = Costs::new(&problem);
    let found = searched(&problem, &costs);
    assert_eq!(cached_bytes(&costs, &found.options).len(), 1);
    assert_eq!(found.options, [1, 1]);
    let alone = Costs::new(&cluster(&[(2.0, 1)], vec![with_cut(1)]));
    assert_eq!(cache_price(&costs, &found.options), cache_price(&alone, &[1]));
}
