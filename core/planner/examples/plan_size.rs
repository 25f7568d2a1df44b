//! Measures the planning time of large fleets: `cargo run --release -p feedline-planner --example plan_size`.

#[path = "../tests/plan_size/fleet.rs"]
mod fleet;
#[path = "../tests/plan_size/tenants.rs"]
mod tenants;

use std::time::{Duration, Instant};

use feedline_planner::plan::{CheckLimit, NoDeadline, Plan, Problem, solve};

/// Deadline of a plan, as in a coordinator.
const PLANNING_DEADLINE: Duration = Duration::from_secs(1);

fn main() {
    println!("jobs workers  load   first unchanged   1 % off  one lost  smallest fed    gap");
    for (jobs, workers) in [(10, 100), (100, 1000), (1000, 10_000)] {
        for load in [0.6, 3.0, 10.0] {
            let problem = fleet::fleet(jobs, workers, load, 1);
            let (first_s, plan) = timed(&problem, None);
            let (same_s, _) = timed(&problem, Some(&plan));
            let mut changed = problem.clone();
            for job in changed.jobs.iter_mut().step_by(3) {
                job.demand_rows_per_s = job.demand_rows_per_s.map(|demand| 1.01 * demand);
            }
            let (near_s, near) = timed(&changed, Some(&plan));
            changed.workers.remove(workers as usize / 2);
            let (lost_s, _) = timed(&changed, Some(&near));
            println!(
                "{jobs:4} {workers:7} {load:5.1} {first_s:6.3} s {same_s:7.3} s {near_s:7.3} s {lost_s:7.3} s {:13.3} {:6.3}",
                plan.objective.smallest_fed, plan.gap
            );
        }
    }
    println!("tenants jobs workers  no time  a second  fallback  smallest fed");
    for (tenants, jobs, workers) in [(10, 1000, 10_000), (1000, 5000, 1000), (1000, 5000, 10_000)] {
        let problem = tenants::tenants_over_quota(tenants, jobs, workers);
        let start = Instant::now();
        solve(&problem, None, &CheckLimit::new(0)).expect("the problem is consistent");
        let fallback_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let plan = solve(&problem, None, &|| start.elapsed() > PLANNING_DEADLINE)
            .expect("the problem is consistent");
        println!(
            "{tenants:7} {jobs:4} {workers:7} {fallback_s:6.3} s {:7.3} s {:>9} {:13.3}",
            start.elapsed().as_secs_f64(),
            if plan.is_fallback { "yes" } else { "no" },
            plan.objective.smallest_fed
        );
    }
}

fn timed(problem: &Problem, previous: Option<&Plan>) -> (f64, Plan) {
    let start = Instant::now();
    let plan = solve(problem, previous, &NoDeadline).expect("the problem is consistent");
    (start.elapsed().as_secs_f64(), plan)
}
