//! Plans for fleets of the size of a data centre: feasible, and equal for equal problems. The example `plan_size`
//! measures times.

use feedline_planner::plan::{CheckLimit, NoDeadline, Plan, solve};

#[path = "plan_size/fleet.rs"]
mod fleet;
#[path = "plan_size/tenants.rs"]
mod tenants;

fn cores_of_each_worker(plan: &Plan) -> std::collections::BTreeMap<u64, f64> {
    let mut cores = std::collections::BTreeMap::new();
    for (worker, allocation) in plan.jobs.iter().flat_map(|job| &job.allocations) {
        *cores.entry(worker.0).or_insert(0.0) += allocation.cores;
    }
    cores
}

#[test]
fn a_hundred_jobs_on_a_thousand_workers() {
    for load in [0.6, 3.0] {
        let problem = fleet::fleet(100, 1000, load, 1);
        let plan = solve(&problem, None, &NoDeadline).expect("the problem is consistent");
        assert!(!plan.is_fallback);
        for (worker, cores) in cores_of_each_worker(&plan) {
            let slot = problem.workers[worker as usize - 1];
            let has = problem.worker_types[slot.worker_type].cores;
            assert!(cores <= has * (1.0 + 1e-6), "worker {worker} has {has} cores, not {cores}");
        }
        assert!(plan.gap < 0.3, "the gap at load {load} is {}", plan.gap);
        // Few jobs share a worker: mostly two, if cores and network are both scarce.
        let parts: usize = plan.jobs.iter().map(|job| job.allocations.len()).sum();
        assert!(parts <= 2 * problem.workers.len() + 3 * problem.jobs.len(), "{parts} parts");
        let again = solve(&problem, Some(&plan), &NoDeadline).expect("the problem is consistent");
        assert_eq!(again, plan);
    }
}

#[test]
fn the_quotas_of_a_thousand_tenants_hold_without_time() {
    let problem = tenants::tenants_over_quota(1000, 5000, 1000);
    let plan = solve(&problem, None, &CheckLimit::new(0)).expect("the problem is consistent");
    assert!(plan.is_fallback && plan.objective.smallest_fed > 0.0);
    let mut cores = vec![0.0; problem.tenants.len()];
    for (job, planned) in problem.jobs.iter().zip(&plan.jobs) {
        let tenant = job.tenant.expect("every job has a tenant");
        cores[tenant] += planned.cores();
    }
    let most = cores.iter().copied().fold(0.0, f64::max);
    assert!(most <= tenants::CORES * (1.0 + 1e-6), "a tenant has {most} cores");
}
