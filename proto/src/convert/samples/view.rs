//! A sample of the view of the cluster.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::*;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_data::view::WantedWorkers;
use feedline_data::view::{Bottleneck, BottleneckKind};
use feedline_data::view::{CacheView, ClusterView, JobView, PoolDecision, WorkerJobUsage, WorkerView};

pub(crate) fn bottleneck_kinds() -> [BottleneckKind; 7] {
    use BottleneckKind::*;
    [Cpu, Store, Latency, Sequential, Network, Memory, Consumer]
}

/// A view with a running job, a preparing job, two workers and a cache per tier.
pub(crate) fn cluster_view() -> ClusterView {
    let running = JobView {
        job: JobId(5),
        tenant: "vision".to_owned(),
        name: "run-1".to_owned(),
        state: JobState::Running,
        consumers: 4,
        workers: 2,
        rows: 1 << 40,
        rows_per_s: 1234.5,
        demand_rows_per_s: Some(2000.0),
        fed_fraction: Some(0.617),
        stall_share: Some(0.25),
        cores: 12.5,
        bottleneck: Some(Bottleneck {
            kind: BottleneckKind::Cpu,
            operator: Some("decode_image".to_owned()),
            rows_per_s: 1250.0,
            explanation: "12.5 cores give 1250 rows/s".to_owned(),
        }),
        store_limit: Some("store s3://bucket limits the job to 150 requests/s".to_owned()),
    };
    let waiting = JobView {
        job: JobId(6),
        state: JobState::Preparing { indexed: 1, shards: 3, read_bytes: 4, total_bytes: 5, workers: 2 },
        demand_rows_per_s: None,
        fed_fraction: None,
        stall_share: None,
        bottleneck: None,
        store_limit: None,
        ..running.clone()
    };
    let worker = WorkerView {
        worker: WorkerId(u64::MAX),
        address: "http://10.0.0.7:7071".to_owned(),
        worker_type: "8 cores, 4.0 GiB".to_owned(),
        cores: 8,
        used_cores: 7.5,
        memory_bytes: 4 << 30,
        finished_bytes: 1 << 30,
        memory: super::memory_usage(),
        peak_rss_bytes: Some(3 << 30),
        draining: true,
        memory_full: true,
        job_usage: [5, 6]
            .map(|job| WorkerJobUsage { job: JobId(job), used_cores: 3.75, finished_bytes: 1 << 29 })
            .to_vec(),
    };
    let cache = |tier| CacheView {
        operator: "source".to_owned(),
        tier,
        encoding: CacheEncoding::Pixels,
        bytes: 1e9,
        hit_rate: (tier == CacheTier::Disk).then_some(0.5),
        jobs: vec![JobId(5)],
    };
    ClusterView {
        now_ms: 123_456,
        jobs: vec![running, waiting],
        workers: vec![worker.clone(), WorkerView { peak_rss_bytes: None, job_usage: Vec::new(), ..worker }],
        wanted: vec![WantedWorkers { worker_type: "8 cores, 4.0 GiB".to_owned(), live: 2, wanted: 3 }],
        caches: CacheTier::ALL.map(cache).into(),
        reasons: vec!["the least fed job gets 62 %".to_owned()],
        scaling: Some("3 workers were asked for".to_owned()),
        pools: vec![
            PoolDecision { pool: "spot".to_owned(), present: 2, wanted: 3, is_known: true },
            PoolDecision { pool: String::new(), present: 1, wanted: 1, is_known: false },
        ],
    }
}
