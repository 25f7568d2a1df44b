//! Where consumers stand at a step, and what each says for it.

use feedline_data::messages::{GroupPositions, HistoryReport};
use feedline_data::position_history::{BatchCount, DeliveredRun, HistoryBase, PositionHistory, StepId};

use super::reports::{read_streams, write_streams};
use super::{WireError, all, required};
use crate::wire;

impl From<StepId> for wire::Step {
    fn from(step: StepId) -> Self {
        let StepId { epochs, rounds, rest } = step;
        Self { epochs, rounds, rest }
    }
}

impl From<wire::Step> for StepId {
    fn from(step: wire::Step) -> Self {
        let wire::Step { epochs, rounds, rest } = step;
        Self { epochs, rounds, rest }
    }
}

impl From<PositionHistory> for wire::Marks {
    fn from(marks: PositionHistory) -> Self {
        let base = marks.base();
        let write = |mark: &DeliveredRun| wire::Mark {
            lane: mark.lane,
            position: Some(mark.position.into()),
            batch_of: mark.batch_of,
        };
        Self {
            began: write_streams(marks.began().to_vec()),
            base: all(base.positions.clone()),
            batches: base.count.batches,
            epoch: base.count.epoch,
            of_epoch: base.count.of_epoch,
            marks: marks.marks().map(write).collect(),
            foreseen: marks.foreseen(),
            is_over: marks.is_over(),
        }
    }
}

impl TryFrom<wire::Marks> for PositionHistory {
    type Error = WireError;

    fn try_from(marks: wire::Marks) -> Result<Self, WireError> {
        let count = BatchCount { batches: marks.batches, epoch: marks.epoch, of_epoch: marks.of_epoch };
        let base = HistoryBase { positions: all(marks.base), count };
        let read = |mark: wire::Mark| {
            let position = required(mark.position, "mark.position")?.into();
            Ok(DeliveredRun { lane: mark.lane, position, batch_of: mark.batch_of })
        };
        let list = marks.marks.into_iter().map(read).collect::<Result<_, WireError>>()?;
        Self::of_parts(read_streams(marks.began)?, base, list, marks.foreseen, marks.is_over)
            .map_err(WireError)
    }
}

/// What a report says of marks: two of its fields.
pub(super) fn write_marks(report: HistoryReport) -> (Option<wire::Marks>, bool) {
    (report.marks.map(|marks| (*marks).into()), report.is_last)
}

pub(super) fn read_marks(marks: Option<wire::Marks>, is_last: bool) -> Result<HistoryReport, WireError> {
    let marks = marks.map(PositionHistory::try_from).transpose()?.map(Box::new);
    Ok(HistoryReport { marks, is_last })
}

impl From<GroupPositions> for wire::GroupPlaces {
    fn from(told: GroupPositions) -> Self {
        Self { positions: write_streams(told.positions), missing: told.missing, waits: told.waits }
    }
}

impl TryFrom<wire::GroupPlaces> for GroupPositions {
    type Error = WireError;

    fn try_from(told: wire::GroupPlaces) -> Result<Self, WireError> {
        Ok(Self { positions: read_streams(told.positions)?, missing: told.missing, waits: told.waits })
    }
}
