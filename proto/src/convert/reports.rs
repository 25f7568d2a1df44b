//! Reports of workers and consumers, and the plans that answer them.

use feedline_data::ids::{JobId, SessionId, TaskId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::messages::{
    CacheDecision, ConsumerPlan, ConsumerReport, EncodingStats, JobAllocation, Lease, PlannedSplit,
    SlotGrant, SlotPosition, SlotReport, Task, TaskOutput, TaskResult, TenantPart, TierCapacity,
    WorkerJobStats, WorkerPlan, WorkerReport,
};
use feedline_data::tenants::TenantReads;
use feedline_data::urls::UrlPolicy;

use super::places::{read_history, write_history};
use super::{WireError, all, read, read_all, read_enum, read_optional, required};
use crate::wire;

impl From<WorkerReport> for wire::WorkerReport {
    fn from(report: WorkerReport) -> Self {
        let computed = report
            .computed
            .into_iter()
            .map(|(job, split)| wire::JobSplit { job: job.0, split: Some(split.into()) });
        Self {
            worker: report.worker.0,
            address: report.address,
            cores: report.cores,
            memory_bytes: report.memory_bytes,
            machine: report.machine,
            nic_bytes_per_s: report.nic_bytes_per_s,
            seen: Some(report.seen.into()),
            computed: computed.collect(),
            memory_full: report.memory_full,
            draining: report.draining,
            tasks: all(report.tasks),
            elapsed_ns: report.elapsed_ns,
            cpu: Some(report.cpu.into()),
            stats: all(report.stats),
            caches: all(report.caches),
        }
    }
}

impl TryFrom<wire::WorkerReport> for WorkerReport {
    type Error = WireError;

    fn try_from(report: wire::WorkerReport) -> Result<Self, WireError> {
        let computed = report
            .computed
            .into_iter()
            .map(|lease| Ok((JobId(lease.job), split(lease.split, "computed.split")?)));
        Ok(Self {
            worker: WorkerId(report.worker),
            address: report.address,
            cores: report.cores,
            memory_bytes: report.memory_bytes,
            machine: report.machine,
            nic_bytes_per_s: report.nic_bytes_per_s,
            seen: required(report.seen, "worker.seen")?.into(),
            computed: computed.collect::<Result<_, WireError>>()?,
            memory_full: report.memory_full,
            draining: report.draining,
            tasks: read_all(report.tasks)?,
            elapsed_ns: report.elapsed_ns,
            cpu: report.cpu.unwrap_or_default().into(),
            stats: read_all(report.stats)?,
            caches: read_all(report.caches)?,
        })
    }
}

impl From<WorkerPlan> for wire::WorkerPlan {
    fn from(plan: WorkerPlan) -> Self {
        let leases = plan.leases.into_iter().map(|lease| wire::Lease {
            job: lease.job.0,
            split: Some(lease.split.into()),
            from: lease.from,
        });
        Self {
            revision: Some(plan.revision.into()),
            leases: leases.collect(),
            tasks: all(plan.tasks),
            lease_ms: plan.lease_ms,
            cores: plan.cores,
            allotments: all(plan.allotments),
            tenants: all(plan.tenants),
            ticket_key: plan.ticket_key.into(),
            mixes: all(plan.mixes),
        }
    }
}

impl TryFrom<wire::WorkerPlan> for WorkerPlan {
    type Error = WireError;

    fn try_from(plan: wire::WorkerPlan) -> Result<Self, WireError> {
        let leases = plan.leases.into_iter().map(|lease| {
            Ok(Lease { job: JobId(lease.job), split: split(lease.split, "lease.split")?, from: lease.from })
        });
        Ok(Self {
            revision: required(plan.revision, "plan.revision")?.into(),
            leases: leases.collect::<Result<_, WireError>>()?,
            tasks: read_all(plan.tasks)?,
            lease_ms: plan.lease_ms,
            cores: plan.cores,
            allotments: read_all(plan.allotments)?,
            tenants: all(plan.tenants),
            ticket_key: plan.ticket_key.into(),
            mixes: all(plan.mixes),
        })
    }
}

impl From<TenantPart> for wire::TenantPart {
    fn from(part: TenantPart) -> Self {
        let jobs = part.jobs.into_iter().map(|job| job.0).collect();
        Self { tenant: part.tenant, cache_bytes: part.cache_bytes, jobs }
    }
}

impl From<wire::TenantPart> for TenantPart {
    fn from(part: wire::TenantPart) -> Self {
        let jobs = part.jobs.into_iter().map(JobId).collect();
        Self { tenant: part.tenant, cache_bytes: part.cache_bytes, jobs }
    }
}

impl From<JobAllocation> for wire::Allotment {
    fn from(allotment: JobAllocation) -> Self {
        let limit = |(operator, limit)| wire::OperatorLimit { operator, limit };
        Self {
            job: allotment.job.0,
            cores: allotment.cores,
            most_cores: allotment.most_cores,
            operator_limits: allotment.operator_limits.into_iter().map(limit).collect(),
            read_concurrency: allotment.read_concurrency,
            prefetch_bytes: allotment.prefetch_bytes,
            keep: allotment.keep.map(Into::into),
        }
    }
}

impl TryFrom<wire::Allotment> for JobAllocation {
    type Error = WireError;

    fn try_from(allotment: wire::Allotment) -> Result<Self, WireError> {
        let limit = |limit: wire::OperatorLimit| (limit.operator, limit.limit);
        Ok(Self {
            job: JobId(allotment.job),
            // A weight: what is none counts as not given.
            cores: positive(allotment.cores),
            most_cores: positive(allotment.most_cores),
            operator_limits: allotment.operator_limits.into_iter().map(limit).collect(),
            read_concurrency: allotment.read_concurrency,
            prefetch_bytes: allotment.prefetch_bytes,
            keep: read_optional(allotment.keep)?,
        })
    }
}

/// 0 for what is no number above it.
fn positive(number: f64) -> f64 {
    if number.is_finite() && number > 0.0 { number } else { 0.0 }
}

impl From<CacheDecision> for wire::Keep {
    fn from(keep: CacheDecision) -> Self {
        let (tier, form) = (wire::CacheTier::from(keep.tier), wire::KeptForm::from(keep.form));
        Self { after: keep.after, tier: tier.into(), form: form.into() }
    }
}

impl TryFrom<wire::Keep> for CacheDecision {
    type Error = WireError;

    fn try_from(keep: wire::Keep) -> Result<Self, WireError> {
        Ok(Self {
            after: keep.after,
            tier: read_enum::<wire::CacheTier, _>(keep.tier, "keep.tier")?,
            form: read_enum::<wire::KeptForm, _>(keep.form, "keep.form")?,
        })
    }
}

impl From<TierCapacity> for wire::TierRoom {
    fn from(room: TierCapacity) -> Self {
        let TierCapacity { tier, room_bytes, held_bytes } = room;
        Self { tier: wire::CacheTier::from(tier).into(), room_bytes, held_bytes }
    }
}

impl TryFrom<wire::TierRoom> for TierCapacity {
    type Error = WireError;

    fn try_from(room: wire::TierRoom) -> Result<Self, WireError> {
        let wire::TierRoom { tier, room_bytes, held_bytes } = room;
        Ok(Self { tier: read_enum::<wire::CacheTier, _>(tier, "caches.tier")?, room_bytes, held_bytes })
    }
}

impl From<Task> for wire::Task {
    fn from(task: Task) -> Self {
        let shards = task.shards.map(shard_list);
        Self { id: task.id.0, source: Some(task.source.into()), shards, reads: Some(task.reads.into()) }
    }
}

impl TryFrom<wire::Task> for Task {
    type Error = WireError;

    fn try_from(task: wire::Task) -> Result<Self, WireError> {
        let shards = task.shards.map(|list| all::<_, ShardRef>(list.shards));
        let (source, reads) = (read(task.source, "task.source")?, read(task.reads, "task.reads")?);
        Ok(Self { id: TaskId(task.id), source, shards, reads })
    }
}

impl From<TenantReads> for wire::TenantReads {
    fn from(reads: TenantReads) -> Self {
        let credentials = reads.credentials.map(|names| wire::CredentialNames { names });
        Self { urls: reads.urls.into(), credentials }
    }
}

impl TryFrom<wire::TenantReads> for TenantReads {
    type Error = WireError;

    fn try_from(reads: wire::TenantReads) -> Result<Self, WireError> {
        let urls = UrlPolicy::new(reads.urls).map_err(WireError)?;
        Ok(Self { urls, credentials: reads.credentials.map(|credentials| credentials.names) })
    }
}

impl From<TaskResult> for wire::TaskResult {
    fn from(result: TaskResult) -> Self {
        use wire::task_result::Outcome;
        let outcome = match result.outcome {
            Ok(TaskOutput::Listed(shards)) => Outcome::Listed(shard_list(shards)),
            Ok(TaskOutput::Indexed(shards)) => {
                let shards = shards.iter().map(wire::ShardIndex::from).collect();
                Outcome::Indexed(wire::ShardIndexList { shards })
            }
            Err(message) => Outcome::Failed(message),
        };
        Self { id: result.id.0, outcome: Some(outcome) }
    }
}

impl TryFrom<wire::TaskResult> for TaskResult {
    type Error = WireError;

    fn try_from(result: wire::TaskResult) -> Result<Self, WireError> {
        use wire::task_result::Outcome;
        let outcome = match required(result.outcome, "task.outcome")? {
            Outcome::Listed(list) => Ok(TaskOutput::Listed(all(list.shards))),
            Outcome::Indexed(list) => Ok(TaskOutput::Indexed(read_all::<_, ShardIndex>(list.shards)?)),
            Outcome::Failed(message) => Err(message),
        };
        Ok(Self { id: TaskId(result.id), outcome })
    }
}

impl From<WorkerJobStats> for wire::WorkerJobStats {
    fn from(stats: WorkerJobStats) -> Self {
        Self {
            job: stats.job.0,
            operators: all(stats.operators),
            store: Some(stats.store.into()),
            memory_wait_ns: stats.memory_wait_ns,
            peak_rss_bytes: stats.peak_rss_bytes,
            elapsed_ns: stats.elapsed_ns,
            cpu: Some(stats.cpu.into()),
            forms: all(stats.forms),
        }
    }
}

impl TryFrom<wire::WorkerJobStats> for WorkerJobStats {
    type Error = WireError;

    fn try_from(stats: wire::WorkerJobStats) -> Result<Self, WireError> {
        Ok(Self {
            job: JobId(stats.job),
            operators: all(stats.operators),
            store: stats.store.unwrap_or_default().into(),
            memory_wait_ns: stats.memory_wait_ns,
            peak_rss_bytes: stats.peak_rss_bytes,
            elapsed_ns: stats.elapsed_ns,
            cpu: stats.cpu.unwrap_or_default().into(),
            forms: read_all(stats.forms)?,
        })
    }
}

impl From<EncodingStats> for wire::FormStats {
    fn from(stats: EncodingStats) -> Self {
        let EncodingStats { after, form, rows, plain_bytes, bytes, make_ns, plain_ns, use_ns } = stats;
        let form = wire::KeptForm::from(form).into();
        Self { after, form, rows, plain_bytes, bytes, make_ns, plain_ns, use_ns }
    }
}

impl TryFrom<wire::FormStats> for EncodingStats {
    type Error = WireError;

    fn try_from(stats: wire::FormStats) -> Result<Self, WireError> {
        let wire::FormStats { after, form, rows, plain_bytes, bytes, make_ns, plain_ns, use_ns } = stats;
        let form = read_enum::<wire::KeptForm, _>(form, "forms.form")?;
        Ok(Self { after, form, rows, plain_bytes, bytes, make_ns, plain_ns, use_ns })
    }
}

impl From<ConsumerReport> for wire::ConsumerReport {
    fn from(report: ConsumerReport) -> Self {
        let open = report
            .open
            .into_iter()
            .map(|(split, offset)| wire::SplitAt { split: Some(split.into()), offset });
        let unreachable = report
            .unreachable
            .into_iter()
            .map(|(split, worker)| wire::Unreachable { split: Some(split.into()), worker: worker.0 });
        let (marks, is_last) = write_history(report.history);
        Self {
            job: report.job.0,
            consumer: report.consumer,
            session: report.session.0,
            seen: Some(report.seen.into()),
            positions: write_streams(report.positions),
            open: open.collect(),
            wants: report.wants,
            unreachable: unreachable.collect(),
            failed: report.failed,
            stats: Some(report.stats.into()),
            claims: all(report.slots.claims),
            leaving: report.slots.leaving,
            slot_ns: report.slots.slot_ns,
            marks,
            is_last,
        }
    }
}

impl From<SlotPosition> for wire::SlotClaim {
    fn from(claim: SlotPosition) -> Self {
        let SlotPosition { stream, generation, position, stopped } = claim;
        Self { stream, generation, position: Some(position.into()), stopped }
    }
}

impl TryFrom<wire::SlotClaim> for SlotPosition {
    type Error = WireError;

    fn try_from(claim: wire::SlotClaim) -> Result<Self, WireError> {
        let wire::SlotClaim { stream, generation, position, stopped } = claim;
        Ok(Self { stream, generation, position: required(position, "claim.position")?.into(), stopped })
    }
}

impl From<SlotGrant> for wire::SlotGrant {
    fn from(grant: SlotGrant) -> Self {
        let SlotGrant { stream, generation, position, release } = grant;
        Self { stream, generation, position: Some(position.into()), release }
    }
}

impl TryFrom<wire::SlotGrant> for SlotGrant {
    type Error = WireError;

    fn try_from(grant: wire::SlotGrant) -> Result<Self, WireError> {
        let wire::SlotGrant { stream, generation, position, release } = grant;
        Ok(Self { stream, generation, position: required(position, "slot.position")?.into(), release })
    }
}

impl TryFrom<wire::ConsumerReport> for ConsumerReport {
    type Error = WireError;

    fn try_from(report: wire::ConsumerReport) -> Result<Self, WireError> {
        let open = report.open.into_iter().map(|open| Ok((split(open.split, "open.split")?, open.offset)));
        let unreachable = report
            .unreachable
            .into_iter()
            .map(|lost| Ok((split(lost.split, "unreachable.split")?, WorkerId(lost.worker))));
        Ok(Self {
            job: JobId(report.job),
            consumer: report.consumer,
            session: SessionId(report.session),
            seen: required(report.seen, "consumer.seen")?.into(),
            positions: read_streams(report.positions)?,
            open: open.collect::<Result<_, WireError>>()?,
            wants: report.wants,
            unreachable: unreachable.collect::<Result<_, WireError>>()?,
            failed: report.failed,
            stats: required(report.stats, "consumer.stats")?.into(),
            slots: SlotReport {
                claims: read_all(report.claims)?,
                leaving: report.leaving,
                slot_ns: report.slot_ns,
            },
            history: read_history(report.marks, report.is_last)?,
        })
    }
}

impl From<ConsumerPlan> for wire::ConsumerPlan {
    fn from(plan: ConsumerPlan) -> Self {
        Self {
            revision: Some(plan.revision.into()),
            state: Some(plan.state.into()),
            layout: plan.layout.map(Into::into),
            streams: write_streams(plan.streams),
            splits: all(plan.splits),
            exhausted: plan.exhausted,
            most_splits: plan.most_splits,
            consumers: plan.consumers,
            ticket: plan.ticket,
            elastic: plan.slots.is_some(),
            slots: all(plan.slots.unwrap_or_default()),
            asked: all(plan.step_queries),
        }
    }
}

impl TryFrom<wire::ConsumerPlan> for ConsumerPlan {
    type Error = WireError;

    fn try_from(plan: wire::ConsumerPlan) -> Result<Self, WireError> {
        let slots = read_all(plan.slots)?;
        Ok(Self {
            revision: required(plan.revision, "plan.revision")?.into(),
            state: read(plan.state, "plan.state")?,
            layout: read_optional(plan.layout)?,
            streams: read_streams(plan.streams)?,
            splits: read_all(plan.splits)?,
            exhausted: plan.exhausted,
            most_splits: plan.most_splits,
            consumers: plan.consumers,
            ticket: plan.ticket,
            slots: plan.elastic.then_some(slots),
            step_queries: all(plan.asked),
        })
    }
}

impl From<PlannedSplit> for wire::PlannedSplit {
    fn from(planned: PlannedSplit) -> Self {
        let workers =
            planned.workers.into_iter().map(|(worker, address)| wire::Holder { worker: worker.0, address });
        Self { split: Some(planned.split.into()), from: planned.from, workers: workers.collect() }
    }
}

impl TryFrom<wire::PlannedSplit> for PlannedSplit {
    type Error = WireError;

    fn try_from(planned: wire::PlannedSplit) -> Result<Self, WireError> {
        let workers = planned.workers.into_iter().map(|holder| (WorkerId(holder.worker), holder.address));
        Ok(Self {
            split: split(planned.split, "planned.split")?,
            from: planned.from,
            workers: workers.collect(),
        })
    }
}

fn split(split: Option<wire::SplitRef>, field: &str) -> Result<SplitRef, WireError> {
    required(split, field).map(Into::into)
}

fn shard_list(shards: Vec<ShardRef>) -> wire::ShardList {
    wire::ShardList { shards: all(shards) }
}

pub(super) fn write_streams(streams: Vec<(u32, StreamPosition)>) -> Vec<wire::StreamAt> {
    let write = |(stream, position): (u32, StreamPosition)| wire::StreamAt {
        stream,
        position: Some(position.into()),
    };
    streams.into_iter().map(write).collect()
}

pub(super) fn read_streams(streams: Vec<wire::StreamAt>) -> Result<Vec<(u32, StreamPosition)>, WireError> {
    let read = |at: wire::StreamAt| Ok((at.stream, required(at.position, "stream.position")?.into()));
    streams.into_iter().map(read).collect()
}
