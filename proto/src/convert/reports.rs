//! Reports from workers and consumers, and the plans that the coordinator returns.

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::WorkerId;
use feedline_data::layout::{DeliveredPrefix, SplitRef};
use feedline_data::manifest::{IndexedShard, ShardRef, ShardValues};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GraphJobLoad, GraphLoadState, GraphReport, GraphStats, GroupCommit,
    HeldGraph, Lease, PartitionedJob, PlannedSplit, SlotGrant, SlotPosition, SlotReport, Task, TaskOutput,
    TaskProgress, TaskResult, TenantCacheQuota, WorkerAddress, WorkerJobStats, WorkerPlan, WorkerReport,
};
use feedline_data::pipeline::GraphBatchSize;

use super::{Wire, WireError, enumeration, field, message, required, tuple, wrapper};
use crate::wire;

message!(WorkerReport, "worker", {
    worker, address, tls_name, pool, cores, memory_bytes, machine, nic_bytes_per_s, plan_revision, computed,
    memory_full, draining, tasks, task_progress, elapsed_ns, cpu, stats, caches, memory, stores, graphs,
});
message!(GraphReport, "graphs", { held, jobs });
message!(HeldGraph, "graph", { topology, bytes });
message!(GraphJobLoad, "graph", { job, state });
enumeration!(GraphLoadState, { Loading, Loaded, Failed });
message!(WorkerJobStats, "stats", {
    job, operators, store, memory_wait_ns, peak_rss_bytes, elapsed_ns, cpu, encodings, graph,
});
message!(GraphStats, "graph", {
    graph_bytes, load_ns, expected, batches, seeds, nodes, edges, bytes, sample_ns, map_ns, gather_ns, encode_ns,
});
message!(GraphBatchSize, "batch", { seeds, nodes, edges, bytes });

message!(WorkerPlan, "plan", {
    revision, leases, tasks, lease_ms, cores, allocations, tenants, ticket_key, mixes, segments, stores,
    group_commits, graph_jobs, partitioned_jobs,
});
message!(PartitionedJob, "partition", { job, workers, ticket });
message!(GroupCommit, "commit", { job, delivered, offsets });
message!(PartitionOffset, "offset", { topic, partition, offset });
message!(DeliveredPrefix, "delivered", { epoch, rows });
message!(Lease, "lease", { job, split, start_offset, lost_workers });
message!(TenantCacheQuota, "tenant", { tenant, cache_bytes, jobs });

message!(Task, "task", { id, source, shards, reads, lists_growth });
message!(TaskResult, "task", { id, outcome });
message!(TaskProgress, "task_progress", { id, read_bytes });
wrapper!(Vec<ShardRef> => ShardList { shards });
wrapper!(Vec<IndexedShard> => ShardIndexList { shards });
field!(Result<TaskOutput, String>, TaskOutcome);

impl Wire<wire::TaskOutcome> for Result<TaskOutput, String> {
    fn into_wire(self) -> wire::TaskOutcome {
        use wire::task_outcome::Outcome;
        let outcome = match self {
            Ok(TaskOutput::Listed(shards)) => Outcome::Listed(shards.into_wire()),
            Ok(TaskOutput::Indexed(shards)) => Outcome::Indexed(shards.into_wire()),
            Ok(TaskOutput::Unavailable(reason)) => Outcome::Unavailable(reason),
            Err(message) => Outcome::Failed(message),
        };
        wire::TaskOutcome { outcome: Some(outcome) }
    }

    fn from_wire(message: wire::TaskOutcome, field: &str) -> Result<Self, WireError> {
        use wire::task_outcome::Outcome;
        Ok(match required(message.outcome, field)? {
            Outcome::Listed(list) => {
                let mut shards: Vec<ShardRef> = Wire::from_wire(list, field)?;
                ShardValues::share(shards.iter_mut().map(|shard| &mut shard.values));
                Ok(TaskOutput::Listed(shards))
            }
            Outcome::Indexed(list) => Ok(TaskOutput::Indexed(Wire::from_wire(list, field)?)),
            Outcome::Unavailable(reason) => Ok(TaskOutput::Unavailable(reason)),
            Outcome::Failed(message) => Err(message),
        })
    }
}

impl Wire<String> for GraphHash {
    fn into_wire(self) -> String {
        self.into()
    }

    fn from_wire(text: String, field: &str) -> Result<Self, WireError> {
        text.parse().map_err(|error: String| WireError(format!("cannot read `{field}`: {error}")))
    }
}

message!(ConsumerReport, "consumer", {
    job, consumer, session, plan_revision, positions, open_splits, wanted_splits, unreachable, batch_error, stats, slots, history,
    known_growth,
});
tuple!((SplitRef, u32) => SplitOffset { split, offset });
tuple!((SplitRef, WorkerId) => UnreachableWorker { split, worker });
message!(SlotReport, "slots", { claims, leaving, slot_ns });
message!(SlotPosition, "slot", { stream, generation, position, stopped });

message!(ConsumerPlan, "plan", {
    revision, state, layout, streams, splits, exhausted, max_splits, consumers, ticket, slots, has_rows, step_queries,
    growth,
});
message!(PlannedSplit, "split", { split, start_offset, workers });

impl Wire<wire::SplitWorker> for (WorkerId, WorkerAddress) {
    fn into_wire(self) -> wire::SplitWorker {
        let (worker, WorkerAddress { url, tls_name }) = self;
        wire::SplitWorker { worker: worker.into_wire(), address: url, tls_name }
    }

    fn from_wire(message: wire::SplitWorker, _: &str) -> Result<Self, WireError> {
        let wire::SplitWorker { worker, address, tls_name } = message;
        Ok((Wire::from_wire(worker, "SplitWorker.worker")?, WorkerAddress { url: address, tls_name }))
    }
}

message!(SlotGrant, "slot", { stream, generation, position, release });
wrapper!(Vec<SlotGrant> => SlotGrantList { slots });
