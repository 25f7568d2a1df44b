//! Jobs, positions, layouts and splits: what reports, plans and status share.

use feedline_data::checkpoint::{OpenRange, Position};
use feedline_data::ids::JobId;
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerStats, JobMixChanges, JobSpec, OperatorStats, ProcessCpu, Revision, StoreStats,
};
use feedline_data::mix::MixChange;

use super::{WireError, all, mirror, read, read_enum, read_optional};
use crate::wire;

mirror!(Revision, wire::Revision, { life, number });
mirror!(StreamPosition, wire::StreamPosition, { epoch, row });
mirror!(SplitRef, wire::SplitRef, { epoch, ordinal, stream });
mirror!(OpenRange, wire::OpenRange, { epoch, from, to });
mirror!(ConsumerStats, wire::ConsumerStats, { rows, batches, bytes, stall_ns, step_ns, copy_ns, network_bytes });
mirror!(ProcessCpu, wire::ProcessCpu, { process_ns, transport_ns });
mirror!(StoreStats, wire::StoreStats, { requests, bytes, wait_ns, distinct_shards, distinct_shard_bytes });
mirror!(OperatorStats, wire::OperatorStats, {
    name, rows_in, rows_out, bytes_in, bytes_out, cpu_ns, busy_ns, wait_input_ns, wait_output_ns, latency_ns,
    queue_bytes, parallelism,
});

impl From<JobSpec> for wire::JobSpec {
    fn from(spec: JobSpec) -> Self {
        Self {
            tenant: spec.tenant,
            name: spec.name,
            pipeline: Some(spec.pipeline.into()),
            epochs: spec.epochs,
            virtual_consumers: spec.virtual_consumers,
            consumers: spec.consumers,
            start: spec.start.map(Into::into),
            audit: spec.audit,
            reindex: spec.reindex,
            index_only: spec.index_only,
            weight: spec.weight,
            elastic: spec.elastic,
        }
    }
}

impl TryFrom<wire::JobSpec> for JobSpec {
    type Error = WireError;

    fn try_from(spec: wire::JobSpec) -> Result<Self, WireError> {
        Ok(Self {
            tenant: spec.tenant,
            name: spec.name,
            pipeline: read(spec.pipeline, "job.pipeline")?,
            epochs: spec.epochs,
            virtual_consumers: spec.virtual_consumers,
            consumers: spec.consumers,
            start: read_optional(spec.start)?,
            audit: spec.audit,
            reindex: spec.reindex,
            index_only: spec.index_only,
            // Absent where it is the usual one.
            weight: if spec.weight == 0.0 { 1.0 } else { spec.weight },
            elastic: spec.elastic,
        })
    }
}

impl From<Position> for wire::Position {
    fn from(position: Position) -> Self {
        Self {
            version: position.version,
            pipeline: position.pipeline,
            dataset: position.dataset,
            order: wire::OrderMode::from(position.order).into(),
            virtual_consumers: position.virtual_consumers,
            streams: all(position.streams),
            open: all(position.open),
            mix: all(position.mix),
        }
    }
}

impl TryFrom<wire::Position> for Position {
    type Error = WireError;

    fn try_from(position: wire::Position) -> Result<Self, WireError> {
        Ok(Self {
            version: position.version,
            pipeline: position.pipeline,
            dataset: position.dataset,
            order: read_enum::<wire::OrderMode, _>(position.order, "position.order")?,
            virtual_consumers: position.virtual_consumers,
            streams: all(position.streams),
            open: all(position.open),
            mix: all(position.mix),
        })
    }
}

impl From<MixChange> for wire::MixChange {
    fn from(change: MixChange) -> Self {
        let MixChange { pass, place, weights } = change;
        Self { pass, place, weights }
    }
}

impl From<wire::MixChange> for MixChange {
    fn from(change: wire::MixChange) -> Self {
        let wire::MixChange { pass, place, weights } = change;
        Self { pass, place, weights }
    }
}

impl From<JobMixChanges> for wire::JobMix {
    fn from(mix: JobMixChanges) -> Self {
        Self { job: mix.job.0, changes: all(mix.changes) }
    }
}

impl From<wire::JobMix> for JobMixChanges {
    fn from(mix: wire::JobMix) -> Self {
        Self { job: JobId(mix.job), changes: all(mix.changes) }
    }
}

impl From<Layout> for wire::Layout {
    fn from(layout: Layout) -> Self {
        Self {
            dataset_rows: layout.dataset_rows,
            passes: layout.passes,
            epochs: layout.epochs,
            streams: layout.streams,
            batch_rows: layout.batch_rows,
            remainder: wire::Remainder::from(layout.remainder).into(),
            changes_rows: layout.changes_rows,
            split_rows: layout.split_rows,
            group_rows: layout.group_rows,
            coordinated: layout.coordinated,
            mix: all(layout.mix),
        }
    }
}

impl TryFrom<wire::Layout> for Layout {
    type Error = WireError;

    fn try_from(layout: wire::Layout) -> Result<Self, WireError> {
        // The layout's arithmetic divides by these.
        if layout.batch_rows == 0 || layout.split_rows == 0 || layout.streams == 0 {
            return Err(WireError("a layout has batches, splits or streams of size 0".to_owned()));
        }
        Ok(Self {
            dataset_rows: layout.dataset_rows,
            passes: layout.passes,
            epochs: layout.epochs,
            streams: layout.streams,
            batch_rows: layout.batch_rows,
            remainder: read_enum::<wire::Remainder, _>(layout.remainder, "layout.remainder")?,
            changes_rows: layout.changes_rows,
            split_rows: layout.split_rows,
            group_rows: layout.group_rows,
            coordinated: layout.coordinated,
            mix: all(layout.mix),
        })
    }
}
