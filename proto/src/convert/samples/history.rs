//! Position histories and positions at a step.

use feedline_data::checkpoint::{BatchCount, DeliveredRun, HistoryBase, PositionHistory, StepId};
use feedline_data::messages::GroupPositions;

use super::at;

pub(super) fn history() -> PositionHistory {
    let count = BatchCount { batches: 40, epoch: 1, epoch_batches: 7 };
    let list = vec![
        DeliveredRun { stream_index: 1, position: at(1, 70), batch_epoch: None },
        DeliveredRun { stream_index: 0, position: at(1, 80), batch_epoch: Some(0) },
    ];
    let base = HistoryBase { positions: vec![at(1, 60), at(1, 64)], count };
    PositionHistory::from_parts(vec![(0, at(0, 0)), (4, at(0, 9))], base, list, 5, true)
        .expect("the parts are consistent")
}

pub(crate) fn step() -> StepId {
    StepId { epochs: Some(2), batches_per_stream: 1 << 33, extra_batches: 3 }
}

pub(crate) fn group_positions() -> GroupPositions {
    GroupPositions { positions: vec![(0, at(1, 2)), (2, at(0, 5))], missing: vec![1], is_retryable: true }
}
