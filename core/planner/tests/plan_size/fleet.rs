//! Large random problems: jobs with five operators and four cache points on a fleet of three worker types.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::random::RowRandom;
use feedline_planner::plan::{
    CachePointProblem, JobProblem, OperatorProblem, Problem, WorkerSlot, WorkerType,
};

/// The speed of each type relative to the first, its cores, and its share of the fleet.
const TYPES: [(f64, f64, f64); 3] = [(1.0, 16.0, 0.5), (1.4, 32.0, 0.3), (0.7, 8.0, 0.2)];

/// A problem with `jobs` jobs on `workers` workers, whose demand is about `load` times the cores of the fleet.
pub(crate) fn fleet(jobs: u64, workers: u64, load: f64, seed: u64) -> Problem {
    let mut problem = Problem { worker_types: types(), ..Problem::default() };
    for id in 0..workers {
        let share = id as f64 / workers as f64;
        let worker_type = if share < 0.5 {
            0
        } else if share < 0.8 {
            1
        } else {
            2
        };
        problem.workers.push(WorkerSlot { id: WorkerId(id + 1), worker_type });
    }
    let power: f64 =
        TYPES.iter().map(|(speed, cores, share)| speed * cores * share).sum::<f64>() * workers as f64;
    for id in 0..jobs {
        problem.jobs.push(job(id + 1, load * power / jobs as f64, &mut RowRandom::new(seed, 0, 0, id)));
    }
    problem.store_bytes_per_s = vec![2e4 * power];
    problem
}

fn types() -> Vec<WorkerType> {
    let of = |(place, (_, cores, _)): (usize, &(f64, f64, f64))| WorkerType {
        name: format!("type{place}"),
        cores: *cores,
        memory_bytes: 4e9 * cores,
        disk_bytes: 2e10 * cores,
        nic_bytes_per_s: 1.2e8 * cores,
        disk_read_bytes_per_s: 1e9,
        max_workers: 20_000,
        ..WorkerType::default()
    };
    TYPES.iter().enumerate().map(of).collect()
}

/// A job that needs about `cores` cores of the first type.
fn job(id: u64, cores: f64, random: &mut RowRandom) -> JobProblem {
    let names = ["source", "decode", "resize", "augment", "normalize"];
    let costs: Vec<f64> = names.iter().map(|_| random.uniform(0.05e-3, 2e-3)).collect();
    let cpu_s: f64 = costs.iter().sum();
    let operator = |(name, cost): (&&str, &f64)| OperatorProblem {
        name: (*name).to_owned(),
        cpu_s: TYPES.iter().map(|(speed, ..)| cost / speed).collect(),
        ..OperatorProblem::default()
    };
    let rows = random.uniform(1e5, 5e6);
    let cut = |operator_index: usize| {
        let bytes_per_row = [1e5, 5e5, 1.5e5, 1.5e5][operator_index];
        CachePointProblem {
            operator_index,
            bytes: rows * bytes_per_row,
            bytes_per_row,
            key: 10 * (id / 2) + operator_index as u64,
            ..CachePointProblem::default()
        }
    };
    JobProblem {
        id: JobId(id),
        name: format!("job{id}"),
        weight: [1.0, 1.0, 1.0, 2.0][random.below(4) as usize],
        demand_rows_per_s: Some(cores * random.uniform(0.3, 1.7) / cpu_s),
        operators: names.iter().zip(&costs).map(operator).collect(),
        overhead_cpu_s: vec![0.02e-3; TYPES.len()],
        delivered_bytes_per_row: 1.5e5,
        store_bytes_per_row: 1e5,
        store_wait_s_per_row: 5e-3,
        held_bytes_per_core: 5e7,
        cache_points: (0..4).map(cut).collect(),
        ..JobProblem::default()
    }
}
