//! Problems for the planner's tests: by hand, and small ones from a seed.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::random::RowRandom;

use super::problem::{
    CutProblem, JobProblem, OperatorProblem, Problem, TenantProblem, WorkerSlot, WorkerType,
};

/// A job of one operator that takes so many milliseconds of CPU per row on each type.
pub(super) fn job(id: u64, demand: f64, cpu_ms: &[f64]) -> JobProblem {
    JobProblem {
        id: JobId(id),
        name: format!("job{id}"),
        demand_rows_per_s: Some(demand),
        operators: vec![operator("decode", cpu_ms)],
        overhead_cpu_s: vec![0.0; cpu_ms.len()],
        ..JobProblem::default()
    }
}

pub(super) fn operator(name: &str, cpu_ms: &[f64]) -> OperatorProblem {
    OperatorProblem {
        name: name.into(),
        cpu_s: cpu_ms.iter().map(|ms| ms / 1e3).collect(),
        ..OperatorProblem::default()
    }
}

/// Types of so many cores each, with 8 GB of memory, and so many workers of each.
pub(super) fn cluster(types: &[(f64, u32)], jobs: Vec<JobProblem>) -> Problem {
    let kind = |(w, (cores, count)): (usize, &(f64, u32))| WorkerType {
        name: format!("type{w}"),
        cores: *cores,
        memory_bytes: 8e9,
        max_workers: 10 * count,
        ..WorkerType::default()
    };
    let mut problem =
        Problem { jobs, worker_types: types.iter().enumerate().map(kind).collect(), ..Problem::default() };
    for (worker_type, (_, count)) in types.iter().enumerate() {
        for _ in 0..*count {
            let id = WorkerId(problem.workers.len() as u64 + 1);
            problem.workers.push(WorkerSlot { id, worker_type });
        }
    }
    problem
}

/// Draws of one seed.
pub(super) struct Dice(RowRandom);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(RowRandom::new(seed, 0, 0, 0))
    }

    /// Between two numbers, small ones as likely as large ones in their ratio.
    pub(super) fn about(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.0.next_f64())
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0.below(bound)
    }
}

/// Two or three jobs on one or two types, tight or loose, with `cuts` cuts each; some share a key.
pub(super) fn small(seed: u64, cuts: usize) -> Problem {
    let mut dice = Dice::new(seed);
    let types: Vec<(f64, u32)> =
        (0..1 + dice.below(2)).map(|_| (f64::from(2 + dice.below(6)), 1 + dice.below(3))).collect();
    let jobs =
        (0..2 + dice.below(2)).map(|j| random_job(&mut dice, u64::from(j) + 1, types.len(), cuts)).collect();
    let mut problem = cluster(&types, jobs);
    for kind in &mut problem.worker_types {
        kind.memory_bytes = dice.about(1e9, 20e9);
        kind.disk_bytes = if dice.below(2) == 0 { dice.about(5e9, 50e9) } else { 0.0 };
        kind.disk_read_bytes_per_s = dice.about(5e7, 2e9);
    }
    if dice.below(2) == 0 {
        problem.stores = vec![dice.about(2e7, 1e9), dice.about(2e7, 1e9)];
    }
    if dice.below(3) == 0 {
        problem.store_cache_bytes = dice.about(5e9, 1e11);
    }
    problem
}

/// The same with one or two tenants, whose quotas bind or do not; some jobs have none.
pub(super) fn with_tenants(seed: u64, cuts: usize) -> Problem {
    let mut problem = small(seed, cuts);
    let mut dice = Dice::new(seed ^ 0x7e4a);
    for place in 0..1 + dice.below(2) {
        let cores = (dice.below(4) > 0).then(|| dice.about(0.1, 12.0));
        let cache_bytes = (dice.below(2) == 0).then(|| dice.about(2e8, 4e10));
        problem.tenants.push(TenantProblem { name: format!("tenant{place}"), cores, cache_bytes });
    }
    let tenants = problem.tenants.len() as u32;
    for job in &mut problem.jobs {
        job.tenant =
            Some(dice.below(tenants + 1)).filter(|place| *place < tenants).map(|place| place as usize);
    }
    problem
}

fn random_job(dice: &mut Dice, id: u64, types: usize, cuts: usize) -> JobProblem {
    let mut made = job(id, dice.about(200.0, 8000.0), &[]);
    made.operators.clear();
    made.overhead_cpu_s = vec![0.0; types];
    made.store = id as usize % 2;
    made.store_bytes = dice.about(1e3, 2e5);
    made.delivered_bytes = dice.about(1e3, 6e5);
    made.weight = [1.0, 1.0, 2.0][dice.below(3) as usize];
    for place in 0..cuts + 1 {
        let cpu_ms: Vec<f64> = (0..types).map(|_| dice.about(0.02, 3.0)).collect();
        made.operators.push(operator(&format!("operator{place}"), &cpu_ms));
        if place < cuts {
            let bytes = dice.about(5e8, 3e10);
            let bytes_per_row = dice.about(1e3, 6e5);
            // Every second cut is known to all jobs.
            let key = if dice.below(2) == 0 { place as u64 } else { 100 * id + place as u64 };
            made.cuts.push(CutProblem { after: place, bytes, bytes_per_row, key, ..CutProblem::default() });
        }
    }
    made
}

/// Asserts that no worker, tier or store is asked for more than it has, and no tenant has more than its quota.
pub(super) fn assert_feasible(problem: &Problem, plan: &super::Plan) {
    for slot in &problem.workers {
        let parts = plan.jobs.iter().flat_map(|job| &job.assignments).filter(|part| part.worker == slot.id);
        let cores: f64 = parts.map(|part| part.cores).sum();
        let has = problem.worker_types[slot.worker_type].cores;
        assert!(cores <= has * (1.0 + 1e-6), "worker {} has {has} cores, not {cores}", slot.id);
    }
    for (place, tenant) in problem.tenants.iter().enumerate() {
        let is_its = |job: &&super::JobPlan| {
            problem.jobs.iter().any(|given| given.id == job.job && given.tenant == Some(place))
        };
        let own: Vec<&super::JobPlan> = plan.jobs.iter().filter(is_its).collect();
        let cores: f64 = own.iter().flat_map(|job| &job.assignments).map(|part| part.cores).sum();
        let most = tenant.cores.unwrap_or(f64::INFINITY);
        assert!(cores <= most * (1.0 + 1e-6), "{} may have {most} cores, not {cores}", tenant.name);
        let is_read =
            |cache: &&super::CachePlan| cache.jobs.iter().any(|id| own.iter().any(|job| job.job == *id));
        let kept: f64 = plan.caches.iter().filter(is_read).map(|cache| cache.bytes).sum();
        let most = tenant.cache_bytes.unwrap_or(f64::INFINITY);
        assert!(kept <= most * (1.0 + 1e-6), "{} may keep {most} bytes, not {kept}", tenant.name);
    }
    let costs = super::costs::Costs::new(problem);
    for tier in feedline_data::pipeline::CacheTier::ALL {
        let used: f64 = plan.caches.iter().filter(|cache| cache.tier == tier).map(|cache| cache.bytes).sum();
        assert!(used <= costs.room[tier as usize] * (1.0 + 1e-6), "{} holds {used} bytes", tier.name());
    }
    let from_store = |job: &super::JobPlan| {
        let given =
            problem.jobs.iter().find(|given| given.id == job.job).expect("a plan has the problem's jobs");
        let bytes = match job.kept {
            None => given.store_bytes,
            Some(kept) if kept.tier == feedline_data::pipeline::CacheTier::Store => {
                given
                    .cuts
                    .iter()
                    .find(|cut| cut.after == kept.after)
                    .expect("what is kept is a cut")
                    .bytes_per_row
            }
            Some(_) => 0.0,
        };
        bytes * job.rows_per_s
    };
    let store_of = |job: &super::JobPlan| {
        let given = problem.jobs.iter().find(|given| given.id == job.job);
        given.expect("a plan has the problem's jobs").store
    };
    let loads = costs.store_loads(plan.jobs.iter().map(|job| (store_of(job), from_store(job))));
    assert!(loads.iter().all(|load| *load <= 1.0 + 1e-6), "stores give {loads:?} of what they can");
}
