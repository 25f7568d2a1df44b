//! The positions of consumers at a step, and the position history of one consumer.

use feedline_data::checkpoint::{BatchCount, DeliveredRun, HistoryBase, PositionHistory, StepId};
use feedline_data::messages::{GroupPositions, HistoryReport};

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
    fn from(history: PositionHistory) -> Self {
        let base = history.base();
        let write = |run: &DeliveredRun| wire::Mark {
            lane: run.stream_index,
            position: Some(run.position.into()),
            batch_of: run.batch_epoch,
        };
        Self {
            began: write_streams(history.start().to_vec()),
            base: all(base.positions.clone()),
            batches: base.count.batches,
            epoch: base.count.epoch,
            of_epoch: base.count.of_epoch,
            marks: history.runs().map(write).collect(),
            foreseen: history.prefetched(),
            is_over: history.is_complete(),
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
            Ok(DeliveredRun { stream_index: mark.lane, position, batch_epoch: mark.batch_of })
        };
        let runs = marks.marks.into_iter().map(read).collect::<Result<_, WireError>>()?;
        Self::from_parts(read_streams(marks.began)?, base, runs, marks.foreseen, marks.is_over)
            .map_err(WireError)
    }
}

/// The two fields of a report that carry a position history.
pub(super) fn write_history(report: HistoryReport) -> (Option<wire::Marks>, bool) {
    (report.history.map(|history| (*history).into()), report.is_last)
}

pub(super) fn read_history(marks: Option<wire::Marks>, is_last: bool) -> Result<HistoryReport, WireError> {
    let history = marks.map(PositionHistory::try_from).transpose()?.map(Box::new);
    Ok(HistoryReport { history, is_last })
}

impl From<GroupPositions> for wire::GroupPlaces {
    fn from(group: GroupPositions) -> Self {
        Self { positions: write_streams(group.positions), missing: group.missing, waits: group.waits }
    }
}

impl TryFrom<wire::GroupPlaces> for GroupPositions {
    type Error = WireError;

    fn try_from(group: wire::GroupPlaces) -> Result<Self, WireError> {
        Ok(Self { positions: read_streams(group.positions)?, missing: group.missing, waits: group.waits })
    }
}
