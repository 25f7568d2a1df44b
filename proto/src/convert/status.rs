//! How jobs stand, and what a worker needs to work on one.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{JobDetails, JobState, JobStatus};

use super::{WireError, all, read, read_optional, required};
use crate::wire;

impl From<JobState> for wire::JobState {
    fn from(state: JobState) -> Self {
        use wire::job_state::State;
        let state = match state {
            JobState::Preparing { indexed, shards, workers } => {
                State::Preparing(wire::Preparing { indexed, shards, workers })
            }
            JobState::Running => State::Running(wire::Plain {}),
            JobState::Completed => State::Completed(wire::Plain {}),
            JobState::Failed(message) => State::Failed(message),
            JobState::Cancelled => State::Cancelled(wire::Plain {}),
        };
        Self { state: Some(state) }
    }
}

impl TryFrom<wire::JobState> for JobState {
    type Error = WireError;

    fn try_from(state: wire::JobState) -> Result<Self, WireError> {
        use wire::job_state::State;
        Ok(match required(state.state, "job.state")? {
            State::Preparing(preparing) => Self::Preparing {
                indexed: preparing.indexed,
                shards: preparing.shards,
                workers: preparing.workers,
            },
            State::Running(_) => Self::Running,
            State::Completed(_) => Self::Completed,
            State::Failed(message) => Self::Failed(message),
            State::Cancelled(_) => Self::Cancelled,
        })
    }
}

impl From<JobDetails> for wire::JobDetails {
    fn from(details: JobDetails) -> Self {
        Self {
            job: details.job.0,
            pipeline: Some(details.pipeline.into()),
            layout: Some(details.layout.into()),
            source_key: details.source_key,
            dataset: Some(details.dataset.into()),
            audit: details.audit,
            keep: details.keep.map(Into::into),
            reads: Some(details.reads.into()),
        }
    }
}

impl TryFrom<wire::JobDetails> for JobDetails {
    type Error = WireError;

    fn try_from(details: wire::JobDetails) -> Result<Self, WireError> {
        Ok(Self {
            job: JobId(details.job),
            pipeline: read(details.pipeline, "job.pipeline")?,
            layout: read(details.layout, "job.layout")?,
            source_key: details.source_key,
            dataset: read(details.dataset, "job.dataset")?,
            audit: details.audit,
            keep: read_optional(details.keep)?,
            reads: read(details.reads, "job.reads")?,
        })
    }
}

impl From<JobStatus> for wire::JobStatus {
    fn from(status: JobStatus) -> Self {
        let peaks = status
            .worker_peak_rss_bytes
            .into_iter()
            .map(|(worker, bytes)| wire::WorkerPeak { worker: worker.0, bytes });
        let cpu = status
            .worker_cpu
            .into_iter()
            .map(|(worker, cpu)| wire::WorkerCpu { worker: worker.0, cpu: Some(cpu.into()) });
        let owners = status.slot_owners.into_iter().map(|(rank, slots)| wire::SlotOwner { rank, slots });
        Self {
            job: status.job.0,
            tenant: status.tenant,
            name: status.name,
            state: Some(status.state.into()),
            epochs: status.epochs,
            consumers: status.consumers,
            dataset: status.dataset.map(Into::into),
            layout: status.layout.map(Into::into),
            position: status.position.map(Into::into),
            operators: all(status.operators),
            store: Some(status.store.into()),
            worker_cpu: cpu.collect(),
            delivered: Some(status.delivered.into()),
            worker_peak_rss: peaks.collect(),
            coordinator_peak_rss_bytes: status.coordinator_peak_rss_bytes,
            workers: status.workers,
            settled: status.settled,
            slot_owners: owners.collect(),
        }
    }
}

impl TryFrom<wire::JobStatus> for JobStatus {
    type Error = WireError;

    fn try_from(status: wire::JobStatus) -> Result<Self, WireError> {
        let peaks = status.worker_peak_rss.into_iter().map(|peak| (WorkerId(peak.worker), peak.bytes));
        let cpu =
            status.worker_cpu.into_iter().map(|of| (WorkerId(of.worker), of.cpu.unwrap_or_default().into()));
        Ok(Self {
            job: JobId(status.job),
            tenant: status.tenant,
            name: status.name,
            state: read(status.state, "job.state")?,
            epochs: status.epochs,
            consumers: status.consumers,
            dataset: read_optional(status.dataset)?,
            layout: read_optional(status.layout)?,
            position: read_optional(status.position)?,
            operators: all(status.operators),
            store: status.store.unwrap_or_default().into(),
            worker_cpu: cpu.collect(),
            delivered: required(status.delivered, "job.delivered")?.into(),
            worker_peak_rss_bytes: peaks.collect(),
            coordinator_peak_rss_bytes: status.coordinator_peak_rss_bytes,
            workers: status.workers,
            settled: status.settled,
            slot_owners: status.slot_owners.into_iter().map(|owner| (owner.rank, owner.slots)).collect(),
        })
    }
}
