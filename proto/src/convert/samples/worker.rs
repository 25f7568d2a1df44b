//! Samples of the reports and plans of workers.

use feedline_data::graph::description::GraphHash;

use super::*;

pub(super) fn stats() -> Vec<OperatorStats> {
    vec![OperatorStats {
        name: "decode".into(),
        rows_in: 1,
        rows_out: 2,
        bytes_in: 3,
        bytes_out: 4,
        cpu_ns: 5,
        busy_ns: 6,
        wait_input_ns: 7,
        wait_output_ns: 8,
        latency_ns: 9,
        queue_bytes: 10,
        parallelism: Some(11),
    }]
}

pub(super) fn store() -> StoreStats {
    StoreStats { requests: 1, bytes: 2, wait_ns: 3, distinct_shards: 4, distinct_shard_bytes: 5 }
}

pub(super) fn cpu() -> ProcessCpu {
    ProcessCpu { process_ns: 6, transport_ns: 7 }
}

fn worker_job_stats() -> WorkerJobStats {
    WorkerJobStats {
        job: JobId(1),
        operators: stats(),
        store: store(),
        memory_wait_ns: 9,
        peak_rss_bytes: 1 << 30,
        elapsed_ns: 8,
        cpu: cpu(),
        encodings: vec![EncodingStats {
            operators_before: 1,
            encoding: CacheEncoding::Indexed,
            rows: 2,
            plain_bytes: 3,
            encoded_bytes: 4,
            encode_ns: 5,
            plain_ns: 6,
            encoded_ns: 7,
        }],
        graph: Some(GraphStats {
            graph_bytes: 1 << 34,
            load_ns: 1,
            expected: Some(GraphBatchSize { seeds: 2, nodes: 3, edges: 4, bytes: 5 }),
            batches: 6,
            seeds: 7,
            nodes: 8,
            edges: 9,
            bytes: 10,
            sample_ns: 11,
            map_ns: 12,
            gather_ns: 13,
            encode_ns: 14,
        }),
    }
}

pub(crate) fn worker_report() -> WorkerReport {
    let indexes = manifest().shards.into_iter().map(|shard| shard.to_indexed()).collect();
    let outcomes = [
        Ok(TaskOutput::Listed(vec![object(1)])),
        Ok(TaskOutput::Indexed(indexes)),
        Ok(TaskOutput::Unavailable("down".to_owned())),
        Err("no".to_owned()),
    ];
    let result = |(id, outcome)| TaskResult { id: TaskId(id), outcome };
    WorkerReport {
        worker: WorkerId(u64::MAX),
        address: "http://10.0.0.7:7071".to_owned(),
        tls_name: Some("workers.feedline".to_owned()),
        pool: "spot".to_owned(),
        cores: 32,
        memory_bytes: 1 << 36,
        machine: "some CPU".to_owned(),
        nic_bytes_per_s: 1_250_000_000,
        plan_revision: Revision { incarnation: 9, number: 10 },
        computed: vec![(JobId(1), split())],
        memory_full: true,
        draining: true,
        tasks: (0..).zip(outcomes).map(result).collect(),
        task_progress: vec![TaskProgress { id: TaskId(9), read_bytes: 7 << 40 }],
        elapsed_ns: 1 << 40,
        cpu: cpu(),
        stats: vec![worker_job_stats()],
        caches: CacheTier::ALL
            .map(|tier| TierCapacity { tier, capacity_bytes: 1 << 40, used_bytes: 7 })
            .into(),
        memory: memory_usage(),
        stores: vec![StoreReport {
            key: "0123".to_owned(),
            name: "s3://bucket".to_owned(),
            accepted: 1,
            rejected: 2,
            bytes: 3,
            latency_ns: 4,
            base_latency_ns: 5,
            paused_ns: 6,
            elapsed_ns: 7,
            requests_per_s: 8.5,
            jobs: vec![StoreJobReport { job: JobId(1), requests: 9, waiting: 10 }],
        }],
        graphs: Some(worker_graphs()),
    }
}

fn worker_graphs() -> GraphReport {
    let states = [GraphLoadState::Loading, GraphLoadState::Loaded, GraphLoadState::Failed];
    let load = |(job, state)| GraphJobLoad { job: JobId(job), state };
    GraphReport {
        held: vec![HeldGraph { topology: GraphHash(u128::MAX - 1), bytes: 1 << 37 }],
        jobs: (3..).zip(states).map(load).collect(),
    }
}

/// One entry for each account.
pub(crate) fn memory_usage() -> Vec<MemoryUsage> {
    MemoryAccount::ALL.map(|account| MemoryUsage { account, used_bytes: 1 << account as u64 }).into()
}

pub(crate) fn worker_plan() -> WorkerPlan {
    WorkerPlan {
        revision: Revision { incarnation: 9, number: 11 },
        leases: vec![Lease { job: JobId(1), split: split(), start_offset: 12, lost_workers: 2 }],
        tasks: vec![
            Task {
                id: TaskId(4),
                source: source(),
                shards: None,
                reads: TenantReads::default(),
                lists_growth: true,
            },
            Task {
                id: TaskId(5),
                source: source(),
                shards: Some(vec![object(0), object(1)]),
                reads: tenant_reads(),
                lists_growth: false,
            },
            Task {
                id: TaskId(6),
                source: source(),
                shards: Some(Vec::new()),
                reads: TenantReads { credentials: Some(Vec::new()), ..TenantReads::default() },
                lists_growth: false,
            },
        ],
        lease_ms: 3000,
        cores: 2,
        allocations: vec![
            JobAllocation::unlimited(JobId(2)),
            JobAllocation {
                job: JobId(1),
                cores: 0.75,
                max_cores: 1.5,
                operator_limits: vec![("decode_image".to_owned(), 3)],
                read_concurrency: 40,
                prefetch_bytes: 1 << 33,
                cache: Some(CacheDecision {
                    operators_before: 2,
                    tier: CacheTier::Store,
                    encoding: CacheEncoding::Pixels,
                }),
            },
        ],
        tenants: vec![
            TenantCacheQuota {
                tenant: "vision".to_owned(),
                cache_bytes: Some(0),
                jobs: vec![JobId(1), JobId(2)],
            },
            TenantCacheQuota { tenant: "text".to_owned(), cache_bytes: None, jobs: Vec::new() },
        ],
        ticket_key: vec![1, 255, 0],
        mixes: vec![JobMixChanges { job: JobId(1), changes: vec![mix_change()] }],
        segments: vec![growth::segments()],
        stores: vec![StoreShare {
            key: "0123".to_owned(),
            requests_per_s: 6.25,
            in_flight: 3,
            bytes_in_flight: 1 << 20,
            jobs: vec![(JobId(1), 4.25), (JobId(2), 2.0)],
        }],
        group_commits: vec![GroupCommit {
            job: JobId(3),
            delivered: DeliveredPrefix { epoch: 1, rows: 1 << 40 },
            offsets: vec![PartitionOffset { topic: "events".to_owned(), partition: 7, offset: 1 << 33 }],
        }],
        graph_jobs: vec![JobId(5), JobId(u64::MAX)],
        partitioned_jobs: vec![PartitionedJob {
            job: JobId(5),
            workers: vec![
                (WorkerId(3), WorkerAddress::new("http://w3:7071")),
                (
                    WorkerId(4),
                    WorkerAddress { url: "https://w4:1".to_owned(), tls_name: Some("w".to_owned()) },
                ),
            ],
            ticket: "t".to_owned(),
        }],
    }
}
