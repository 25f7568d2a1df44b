//! Measures the time to compute a first plan, and the time to plan an unchanged and a slightly changed problem again:
//! `cargo bench --workspace --bench planner`. The example `plan_size` measures larger fleets.

#[path = "../tests/plan_size/fleet.rs"]
mod fleet;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use feedline_planner::plan::{NoDeadline, Plan, Problem, solve};

/// Demand divided by the capacity of the cluster.
const LOADS: [f64; 2] = [0.6, 3.0];

fn planner(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planner");
    group.sample_size(10);
    for (jobs, workers) in [(10, 100), (100, 1000)] {
        for load in LOADS {
            let size = format!("{jobs} jobs, {workers} workers, load {load}");
            let problem = fleet::fleet(jobs, workers, load, 1);
            let plan = plan(&problem, None);
            let mut changed = problem.clone();
            for job in changed.jobs.iter_mut().step_by(3) {
                job.demand_rows_per_s = job.demand_rows_per_s.map(|demand| 1.01 * demand);
            }
            group.bench_function(BenchmarkId::new("first", &size), |bencher| {
                bencher.iter(|| self::plan(&problem, None));
            });
            group.bench_function(BenchmarkId::new("unchanged", &size), |bencher| {
                bencher.iter(|| self::plan(&problem, Some(&plan)));
            });
            group.bench_function(BenchmarkId::new("demands 1 % off", &size), |bencher| {
                bencher.iter(|| self::plan(&changed, Some(&plan)));
            });
        }
    }
    group.finish();
}

fn plan(problem: &Problem, previous: Option<&Plan>) -> Plan {
    solve(problem, previous, &NoDeadline).expect("the problem is consistent")
}

criterion_group!(benches, planner);
criterion_main!(benches);
