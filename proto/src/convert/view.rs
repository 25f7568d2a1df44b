//! The view of the cluster for users.

use feedline_data::view::{
    Bottleneck, BottleneckKind, CacheView, ClusterView, JobView, PoolDecision, WantedWorkers, WorkerJobUsage,
    WorkerView,
};

use super::{enumeration, message};

message!(ClusterView, "cluster", { now_ms, jobs, workers, wanted, caches, reasons, scaling, pools });
message!(JobView, "job", {
    job, tenant, name, state, consumers, workers, rows, rows_per_s, demand_rows_per_s, fed_fraction, stall_share,
    cores, bottleneck, store_limit,
});
message!(Bottleneck, "bottleneck", { kind, operator, rows_per_s, explanation });
enumeration!(BottleneckKind, { Cpu, Store, Latency, Sequential, Network, Memory, Consumer });
message!(WorkerView, "worker", {
    worker, address, worker_type, cores, used_cores, memory_bytes, finished_bytes, peak_rss_bytes, draining, memory_full,
    job_usage, memory,
});
message!(WorkerJobUsage, "part", { job, used_cores, finished_bytes });
message!(WantedWorkers, "wanted", { worker_type, live, wanted });
message!(PoolDecision, "pool", { pool, present, wanted, is_known });
message!(CacheView, "cache", { operator, tier, encoding, bytes, hit_rate, jobs });
