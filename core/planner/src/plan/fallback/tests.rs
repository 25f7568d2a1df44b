//! The plan without a solver.

use super::super::testing::{cluster, job, small, with_tenants};
use super::*;
use crate::plan::{Problem, TenantProblem};

#[test]
fn the_fallback_is_feasible_on_random_problems() {
    for seed in 0..400 {
        let problem = if seed < 200 { small(seed, 1) } else { with_tenants(seed, 1) };
        let costs = Costs::new(&problem);
        for option in 0..2 {
            let chosen: Vec<usize> =
                costs.options.iter().map(|options| option.min(options.len() - 1)).collect();
            let options: Vec<&ExecutionOption> =
                chosen.iter().enumerate().map(|(j, option)| &costs.options[j][*option]).collect();
            let fractional = even_rates(&costs, &chosen);
            assert!(largest_load(&costs, &options, &fractional.rows_per_s) <= 1.0 + 1e-9, "seed {seed}");
            assert!(fractional.objective.smallest_fed > 0.0, "seed {seed}");
        }
    }
}

#[test]
fn a_tenant_at_its_quota_does_not_limit_other_jobs() {
    let mut jobs = vec![job(1, 1000.0, &[1.0]), job(2, 1000.0, &[1.0]), job(3, 1000.0, &[1.0])];
    (jobs[0].tenant, jobs[1].tenant) = (Some(0), Some(0));
    let tenants = vec![TenantProblem { cores: Some(0.5), ..TenantProblem::default() }];
    let costs = Costs::new(&Problem { tenants, ..cluster(&[(4.0, 1)], jobs) });
    let fed = even_rates(&costs, &[0, 0, 0]).fed_fractions;
    assert!((fed[0] - 0.25).abs() < 1e-6 && (fed[1] - 0.25).abs() < 1e-6 && fed[2] == 1.0, "{fed:?}");
}

#[test]
fn all_jobs_have_the_same_fed_fraction() {
    let costs = Costs::new(&cluster(&[(2.0, 1)], vec![job(1, 100.0, &[1.0]), job(2, 9000.0, &[1.0])]));
    let fractional = even_rates(&costs, &[0, 0]);
    let share = 2000.0 / 9100.0;
    assert!(
        fractional.fed_fractions.iter().all(|fed| (fed - share).abs() < 1e-6),
        "{:?}",
        fractional.fed_fractions
    );
}
