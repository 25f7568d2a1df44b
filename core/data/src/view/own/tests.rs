//! Tests of a tenant's view of a cluster with two tenants.

use super::*;
use crate::ids::WorkerId;
use crate::memory::{MemoryAccount, MemoryUsage};
use crate::messages::JobState;
use crate::pipeline::{CacheEncoding, CacheTier};
use crate::view::WantedWorkers;
use crate::view::{JobView, PoolDecision, WorkerJobUsage};

fn job(id: u64, tenant: &str) -> JobView {
    JobView { state: JobState::Running, ..JobView::new(JobId(id), tenant, "train") }
}

fn worker(id: u64, jobs: &[u64]) -> WorkerView {
    let part = |job: &u64| WorkerJobUsage { job: JobId(*job), used_cores: 1.5, finished_bytes: 100 };
    let parts: Vec<WorkerJobUsage> = jobs.iter().map(part).collect();
    WorkerView {
        worker: WorkerId(id),
        address: format!("http://10.0.0.{id}:7071"),
        worker_type: "8 cores".to_owned(),
        cores: 8,
        used_cores: 1.5 * parts.len() as f64,
        memory_bytes: 1 << 30,
        finished_bytes: 100 * parts.len() as u64,
        memory: vec![MemoryUsage { account: MemoryAccount::Blocks, used_bytes: 1 << 29 }],
        peak_rss_bytes: Some(1 << 30),
        draining: false,
        memory_full: true,
        job_usage: parts,
    }
}

fn cache(jobs: &[u64]) -> CacheView {
    CacheView {
        operator: "decode".to_owned(),
        tier: CacheTier::Disk,
        encoding: CacheEncoding::AsIs,
        bytes: 1e9,
        hit_rate: Some(0.5),
        jobs: jobs.iter().map(|job| JobId(*job)).collect(),
    }
}

#[test]
fn a_tenant_sees_its_jobs_and_the_work_for_them() {
    let view = ClusterView {
        now_ms: 9,
        jobs: vec![job(1, "a"), job(2, "b"), job(3, "")],
        workers: vec![worker(7, &[1, 2]), worker(8, &[2, 3])],
        wanted: vec![WantedWorkers { worker_type: "8 cores".to_owned(), live: 2, wanted: 9 }],
        caches: vec![cache(&[1, 2]), cache(&[1]), cache(&[2])],
        reasons: vec!["job `train` gets half".to_owned()],
        scaling: Some("one more worker was asked for".to_owned()),
        pools: vec![PoolDecision { pool: "spot".to_owned(), present: 2, wanted: 9, is_known: true }],
    };
    let seen = view.for_tenant("a");
    assert_eq!(seen.jobs, [job(1, "a")]);
    let expected =
        WorkerView { memory: Vec::new(), peak_rss_bytes: None, memory_full: false, ..worker(7, &[1]) };
    assert_eq!(seen.workers, [expected]);
    assert_eq!(seen.caches, [CacheView { hit_rate: None, ..cache(&[1]) }, cache(&[1])]);
    assert_eq!((seen.now_ms, seen.wanted.len(), seen.reasons.len(), seen.scaling), (9, 0, 0, None));
    assert!(seen.pools.is_empty(), "the sizes of pools reveal the jobs of others");
}
