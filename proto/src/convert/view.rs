//! The cluster as people see it.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::view::WantedWorkers;
use feedline_data::view::{Bottleneck, BottleneckKind};
use feedline_data::view::{CacheView, ClusterView, JobView, WorkerPart, WorkerView};

use super::{WireError, all, mirror, mirror_enum, read, read_all, read_enum, read_optional};
use crate::wire;

mirror!(WantedWorkers, wire::WantedWorkers, { worker_type, present, wanted });

mirror_enum!(BottleneckKind, wire::BottleneckKind, "bottleneck.kind", {
    Cpu,
    Store,
    Latency,
    Sequential,
    Network,
    Memory,
    Consumer,
});

impl From<ClusterView> for wire::ClusterView {
    fn from(view: ClusterView) -> Self {
        Self {
            now_ms: view.now_ms,
            jobs: all(view.jobs),
            workers: all(view.workers),
            wanted: all(view.wanted),
            caches: all(view.caches),
            reasons: view.reasons,
            scaling: view.scaling,
        }
    }
}

impl TryFrom<wire::ClusterView> for ClusterView {
    type Error = WireError;

    fn try_from(view: wire::ClusterView) -> Result<Self, WireError> {
        Ok(Self {
            now_ms: view.now_ms,
            jobs: read_all(view.jobs)?,
            workers: all(view.workers),
            wanted: all(view.wanted),
            caches: read_all(view.caches)?,
            reasons: view.reasons,
            scaling: view.scaling,
        })
    }
}

impl From<JobView> for wire::JobView {
    fn from(job: JobView) -> Self {
        Self {
            job: job.job.0,
            tenant: job.tenant,
            name: job.name,
            state: Some(job.state.into()),
            consumers: job.consumers,
            workers: job.workers,
            rows: job.rows,
            rows_per_s: job.rows_per_s,
            demand_rows_per_s: job.demand_rows_per_s,
            fed_fraction: job.fed_fraction,
            stall_share: job.stall_share,
            cores: job.cores,
            bottleneck: job.bottleneck.map(Into::into),
        }
    }
}

impl TryFrom<wire::JobView> for JobView {
    type Error = WireError;

    fn try_from(job: wire::JobView) -> Result<Self, WireError> {
        Ok(Self {
            job: JobId(job.job),
            tenant: job.tenant,
            name: job.name,
            state: read(job.state, "job.state")?,
            consumers: job.consumers,
            workers: job.workers,
            rows: job.rows,
            rows_per_s: job.rows_per_s,
            demand_rows_per_s: job.demand_rows_per_s,
            fed_fraction: job.fed_fraction,
            stall_share: job.stall_share,
            cores: job.cores,
            bottleneck: read_optional(job.bottleneck)?,
        })
    }
}

impl From<Bottleneck> for wire::Bottleneck {
    fn from(bound: Bottleneck) -> Self {
        Self {
            kind: wire::BottleneckKind::from(bound.kind).into(),
            operator: bound.operator,
            rows_per_s: bound.rows_per_s,
            why: bound.why,
        }
    }
}

impl TryFrom<wire::Bottleneck> for Bottleneck {
    type Error = WireError;

    fn try_from(bound: wire::Bottleneck) -> Result<Self, WireError> {
        Ok(Self {
            kind: read_enum::<wire::BottleneckKind, _>(bound.kind, "bottleneck.kind")?,
            operator: bound.operator,
            rows_per_s: bound.rows_per_s,
            why: bound.why,
        })
    }
}

impl From<WorkerView> for wire::WorkerView {
    fn from(worker: WorkerView) -> Self {
        Self {
            worker: worker.worker.0,
            address: worker.address,
            worker_type: worker.worker_type,
            cores: worker.cores,
            used_cores: worker.used_cores,
            memory_bytes: worker.memory_bytes,
            held_bytes: worker.held_bytes,
            peak_rss_bytes: worker.peak_rss_bytes,
            draining: worker.draining,
            memory_full: worker.memory_full,
            parts: all(worker.parts),
        }
    }
}

impl From<wire::WorkerView> for WorkerView {
    fn from(worker: wire::WorkerView) -> Self {
        Self {
            worker: WorkerId(worker.worker),
            address: worker.address,
            worker_type: worker.worker_type,
            cores: worker.cores,
            used_cores: worker.used_cores,
            memory_bytes: worker.memory_bytes,
            held_bytes: worker.held_bytes,
            peak_rss_bytes: worker.peak_rss_bytes,
            draining: worker.draining,
            memory_full: worker.memory_full,
            parts: all(worker.parts),
        }
    }
}

impl From<WorkerPart> for wire::WorkerPart {
    fn from(part: WorkerPart) -> Self {
        Self { job: part.job.0, used_cores: part.used_cores, held_bytes: part.held_bytes }
    }
}

impl From<wire::WorkerPart> for WorkerPart {
    fn from(part: wire::WorkerPart) -> Self {
        Self { job: JobId(part.job), used_cores: part.used_cores, held_bytes: part.held_bytes }
    }
}

impl From<CacheView> for wire::CacheView {
    fn from(cache: CacheView) -> Self {
        Self {
            operator: cache.operator,
            tier: wire::CacheTier::from(cache.tier).into(),
            form: wire::KeptForm::from(cache.form).into(),
            bytes: cache.bytes,
            found_share: cache.found_share,
            jobs: cache.jobs.into_iter().map(|job| job.0).collect(),
        }
    }
}

impl TryFrom<wire::CacheView> for CacheView {
    type Error = WireError;

    fn try_from(cache: wire::CacheView) -> Result<Self, WireError> {
        Ok(Self {
            operator: cache.operator,
            tier: read_enum::<wire::CacheTier, _>(cache.tier, "cache.tier")?,
            form: read_enum::<wire::KeptForm, _>(cache.form, "cache.form")?,
            bytes: cache.bytes,
            found_share: cache.found_share,
            jobs: cache.jobs.into_iter().map(JobId).collect(),
        })
    }
}
