//! Position histories, and the positions of all consumers at one step.

use feedline_data::checkpoint::{BatchCount, DeliveredRun, HistoryBase, PositionHistory, StepId};
use feedline_data::messages::{GroupPositions, HistoryReport};

use super::{Wire, WireError, message};
use crate::wire;

message!(StepId, "step", { epochs, batches_per_stream, extra_batches });
message!(DeliveredRun, "run", { stream_index, position, batch_epoch });
message!(GroupPositions, "positions", { positions, missing, is_retryable });
message!(HistoryReport, "history", { history, is_last });

impl Wire<wire::PositionHistory> for PositionHistory {
    fn into_wire(self) -> wire::PositionHistory {
        let HistoryBase { positions, count } = self.base().clone();
        wire::PositionHistory {
            start: self.start().to_vec().into_wire(),
            base: positions.into_wire(),
            batches: count.batches,
            epoch: count.epoch,
            epoch_batches: count.epoch_batches,
            runs: self.runs().map(|run| run.into_wire()).collect(),
            prefetched: self.prefetched(),
            is_complete: self.is_complete(),
        }
    }

    fn from_wire(message: wire::PositionHistory, _: &str) -> Result<Self, WireError> {
        let wire::PositionHistory {
            batches, epoch, epoch_batches: of_epoch, prefetched, is_complete, ..
        } = message;
        let positions = Wire::from_wire(message.base, "history.base")?;
        let base = HistoryBase { positions, count: BatchCount { batches, epoch, epoch_batches: of_epoch } };
        let start = Wire::from_wire(message.start, "history.start")?;
        let runs = Wire::from_wire(message.runs, "history.runs")?;
        Self::from_parts(start, base, runs, prefetched, is_complete).map_err(WireError)
    }
}
