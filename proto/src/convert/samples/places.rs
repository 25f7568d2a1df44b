//! Where consumers stand.

use feedline_data::messages::GroupPositions;
use feedline_data::position_history::{BatchCount, DeliveredRun, HistoryBase, PositionHistory, StepId};

use super::at;

pub(super) fn marks() -> PositionHistory {
    let count = BatchCount { batches: 40, epoch: 1, of_epoch: 7 };
    let list = vec![
        DeliveredRun { lane: 1, position: at(1, 70), batch_of: None },
        DeliveredRun { lane: 0, position: at(1, 80), batch_of: Some(0) },
    ];
    let base = HistoryBase { positions: vec![at(1, 60), at(1, 64)], count };
    PositionHistory::of_parts(vec![(0, at(0, 0)), (4, at(0, 9))], base, list, 5, true)
        .expect("they go together")
}

pub(crate) fn step() -> StepId {
    StepId { epochs: Some(2), rounds: 1 << 33, rest: 3 }
}

pub(crate) fn group_places() -> GroupPositions {
    GroupPositions { positions: vec![(0, at(1, 2)), (2, at(0, 5))], missing: vec![1], waits: true }
}
