//! Problems for tests of the planner: fixed problems, and small random problems.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::random::RowRandom;

use super::problem::{
    CachePointProblem, JobProblem, OperatorProblem, Problem, TenantProblem, WorkerSlot, WorkerType,
};

/// A job with one operator that needs `cpu_ms` milliseconds of CPU per row on each worker type.
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

/// Worker types with the given numbers of cores and workers, and 8 GB of memory.
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

/// Random numbers generated from a seed.
pub(super) struct TestRandom(RowRandom);

impl TestRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(RowRandom::new(seed, 0, 0, 0))
    }

    /// A number between two bounds, with a uniform logarithm.
    pub(super) fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.0.next_f64())
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0.below(bound)
    }
}

/// Two or three jobs on one or two worker types, with `cache_points` points each. Some jobs share a key.
pub(super) fn small(seed: u64, cache_points: usize) -> Problem {
    let mut random = TestRandom::new(seed);
    let types: Vec<(f64, u32)> =
        (0..1 + random.below(2)).map(|_| (f64::from(2 + random.below(6)), 1 + random.below(3))).collect();
    let jobs = (0..2 + random.below(2))
        .map(|j| random_job(&mut random, u64::from(j) + 1, types.len(), cache_points))
        .collect();
    let mut problem = cluster(&types, jobs);
    for kind in &mut problem.worker_types {
        kind.memory_bytes = random.log_uniform(1e9, 20e9);
        kind.disk_bytes = if random.below(2) == 0 { random.log_uniform(5e9, 50e9) } else { 0.0 };
        kind.disk_read_bytes_per_s = random.log_uniform(5e7, 2e9);
    }
    if random.below(2) == 0 {
        problem.store_bytes_per_s = vec![random.log_uniform(2e7, 1e9), random.log_uniform(2e7, 1e9)];
    }
    if random.below(3) == 0 {
        problem.store_cache_bytes = random.log_uniform(5e9, 1e11);
    }
    problem
}

/// Like [`small`], with one or two tenants. Some quotas bind, and some jobs have none.
pub(super) fn with_tenants(seed: u64, cache_points: usize) -> Problem {
    let mut problem = small(seed, cache_points);
    let mut random = TestRandom::new(seed ^ 0x7e4a);
    for place in 0..1 + random.below(2) {
        let cores = (random.below(4) > 0).then(|| random.log_uniform(0.1, 12.0));
        let cache_bytes = (random.below(2) == 0).then(|| random.log_uniform(2e8, 4e10));
        problem.tenants.push(TenantProblem { name: format!("tenant{place}"), cores, cache_bytes });
    }
    let tenants = problem.tenants.len() as u32;
    for job in &mut problem.jobs {
        job.tenant =
            Some(random.below(tenants + 1)).filter(|place| *place < tenants).map(|place| place as usize);
    }
    problem
}

fn random_job(random: &mut TestRandom, id: u64, types: usize, cache_points: usize) -> JobProblem {
    let mut made = job(id, random.log_uniform(200.0, 8000.0), &[]);
    made.operators.clear();
    made.overhead_cpu_s = vec![0.0; types];
    made.store = id as usize % 2;
    made.store_bytes_per_row = random.log_uniform(1e3, 2e5);
    made.delivered_bytes_per_row = random.log_uniform(1e3, 6e5);
    made.weight = [1.0, 1.0, 2.0][random.below(3) as usize];
    for place in 0..cache_points + 1 {
        let cpu_ms: Vec<f64> = (0..types).map(|_| random.log_uniform(0.02, 3.0)).collect();
        made.operators.push(operator(&format!("operator{place}"), &cpu_ms));
        if place < cache_points {
            let bytes = random.log_uniform(5e8, 3e10);
            let bytes_per_row = random.log_uniform(1e3, 6e5);
            // Half of the cache points have a key that all jobs share.
            let key = if random.below(2) == 0 { place as u64 } else { 100 * id + place as u64 };
            made.cache_points.push(CachePointProblem {
                operator_index: place,
                bytes,
                bytes_per_row,
                key,
                ..CachePointProblem::default()
            });
        }
    }
    made
}

/// Asserts that no worker, tier, store or quota is exceeded.
pub(super) fn assert_feasible(problem: &Problem, plan: &super::Plan) {
    for slot in &problem.workers {
        let cores: f64 =
            plan.jobs.iter().filter_map(|job| job.allocations.get(&slot.id)).map(|own| own.cores).sum();
        let has = problem.worker_types[slot.worker_type].cores;
        assert!(cores <= has * (1.0 + 1e-6), "worker {} has {has} cores, not {cores}", slot.id);
    }
    for (place, tenant) in problem.tenants.iter().enumerate() {
        let is_own_job = |job: &&super::JobPlan| {
            problem.jobs.iter().any(|given| given.id == job.job && given.tenant == Some(place))
        };
        let own: Vec<&super::JobPlan> = plan.jobs.iter().filter(is_own_job).collect();
        let cores: f64 = own.iter().map(|job| job.cores()).sum();
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
        assert!(used <= costs.tier_bytes[tier as usize] * (1.0 + 1e-6), "{} holds {used} bytes", tier.name());
    }
    let from_store = |job: &super::JobPlan| {
        let given =
            problem.jobs.iter().find(|given| given.id == job.job).expect("a plan has the problem's jobs");
        let bytes = match job.cache {
            None => given.store_bytes_per_row,
            Some(cache) if cache.tier == feedline_data::pipeline::CacheTier::Store => {
                given
                    .cache_points
                    .iter()
                    .find(|point| point.operator_index == cache.operator_index)
                    .expect("a cached point is one of the job's points")
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
