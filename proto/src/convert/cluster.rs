//! Jobs, positions, layouts, splits and statistics, which reports, plans and status share.

use feedline_data::checkpoint::{OpenRange, Position};
use feedline_data::growth::{GrowthPosition, GrowthUpdate, KnownGrowth};
use feedline_data::ids::{JobId, SessionId, TaskId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerStats, EncodingStats, JobDetails, JobMixChanges, JobSegments, JobSpec, JobState, JobStatus,
    OperatorStats, ProcessCpu, Revision, StoreStats,
};
use feedline_data::mix::MixChange;
use feedline_data::runs::RunLayout;
use feedline_data::tenants::TenantReads;
use feedline_data::urls::UrlPolicy;

use super::{Wire, WireError, field, id, json, message, required, tuple, wrapper};
use crate::wire;

id!(JobId, SessionId, TaskId, WorkerId);

message!(Revision, "revision", { incarnation, number });
message!(StreamPosition, "position", { epoch, row });
message!(SplitRef, "split", { epoch, ordinal, stream });
message!(OpenRange, "range", { epoch, start_row, end_row });
message!(MixChange, "mix", { pass, offset, weights });
message!(JobMixChanges, "mix", { job, changes });
message!(KnownGrowth, "growth", { rounds, partitions });
json!(GrowthPosition, GrowthUpdate, JobSegments);
tuple!((JobId, SplitRef) => JobSplit { job, split });
tuple!((u32, StreamPosition) => PositionOfStream { stream, position });

message!(ConsumerStats, "stats", { rows, batches, bytes, stall_ns, step_ns, copy_ns, network_bytes, skipped_rows, newest_ms });
message!(ProcessCpu, "cpu", { process_ns, transport_ns });
message!(StoreStats, "store", { requests, bytes, wait_ns, distinct_shards, distinct_shard_bytes });
message!(EncodingStats, "encodings", { operators_before, encoding, rows, plain_bytes, encoded_bytes, encode_ns, plain_ns, encoded_ns });
message!(OperatorStats, "operator", {
    name, rows_in, rows_out, bytes_in, bytes_out, cpu_ns, busy_ns, wait_input_ns, wait_output_ns, latency_ns,
    queue_bytes, parallelism,
});

message!(
    JobSpec,
    "job",
    {
        tenant, name, pipeline, epochs, virtual_consumers, consumers, start, audit, reindex, accept_reuploaded,
        accept_changed_pipeline, index_only, weight, elastic,
    },
    check: with_default_weight
);

/// Replaces the weight 0 with the default.
fn with_default_weight(spec: JobSpec) -> Result<JobSpec, WireError> {
    let weight = if spec.weight == 0.0 { 1.0 } else { spec.weight };
    Ok(JobSpec { weight, ..spec })
}

message!(
    Position,
    "position",
    { version, pipeline, dataset, content, order, virtual_consumers, streams, open_ranges, mix, growth, ranges, split_rows }
);
message!(
    Layout,
    "layout",
    {
        dataset_rows, passes, epochs, streams, batch_rows, remainder, changes_rows, split_rows, group_rows,
        coordinated, mix_changes, runs, unbounded, indivisible,
    },
    check: without_empty_units
);

message!(RunLayout, "runs", { lanes, lane_splits, other_splits, is_sequential, group_splits });

/// Rejects sizes of 0, because the computation of positions divides by them.
fn without_empty_units(layout: Layout) -> Result<Layout, WireError> {
    match layout {
        Layout { batch_rows: 0, .. } | Layout { split_rows: 0, .. } | Layout { streams: 0, .. } => {
            Err(WireError("invalid layout: the batch size, split size or number of streams is 0".to_owned()))
        }
        layout => Ok(layout),
    }
}

message!(TenantReads, "reads", { urls, credentials });
wrapper!(Vec<String> => CredentialNames { names });

impl Wire<Vec<String>> for UrlPolicy {
    fn into_wire(self) -> Vec<String> {
        self.into()
    }

    fn from_wire(prefixes: Vec<String>, _: &str) -> Result<Self, WireError> {
        Self::new(prefixes).map_err(WireError)
    }
}

message!(JobDetails, "job", { job, pipeline, layout, source_key, dataset, audit, cache, reads });
tuple!((WorkerId, ProcessCpu) => WorkerCpu { worker, cpu });
tuple!((WorkerId, u64) => WorkerPeak { worker, bytes });
tuple!((u32, u32) => SlotOwner { rank, slots });
message!(JobStatus, "job", {
    job, tenant, name, state, epochs, consumers, dataset, layout, position, operators, store, worker_cpu, delivered,
    worker_peak_rss_bytes, coordinator_peak_rss_bytes, workers, settled, slot_owners, source_error,
});

field!(JobState, JobState);

impl Wire<wire::JobState> for JobState {
    fn into_wire(self) -> wire::JobState {
        use wire::job_state::State;
        let state = match self {
            Self::Preparing { indexed, shards, read_bytes, total_bytes, workers } => {
                State::Preparing(wire::Preparing { indexed, shards, workers, read_bytes, total_bytes })
            }
            Self::Running => State::Running(wire::Empty {}),
            Self::Completed => State::Completed(wire::Empty {}),
            Self::Failed(message) => State::Failed(message),
            Self::Cancelled => State::Cancelled(wire::Empty {}),
        };
        wire::JobState { state: Some(state) }
    }

    fn from_wire(message: wire::JobState, field: &str) -> Result<Self, WireError> {
        use wire::job_state::State;
        Ok(match required(message.state, field)? {
            State::Preparing(wire::Preparing { indexed, shards, workers, read_bytes, total_bytes }) => {
                Self::Preparing { indexed, shards, read_bytes, total_bytes, workers }
            }
            State::Running(_) => Self::Running,
            State::Completed(_) => Self::Completed,
            State::Failed(message) => Self::Failed(message),
            State::Cancelled(_) => Self::Cancelled,
        })
    }
}
