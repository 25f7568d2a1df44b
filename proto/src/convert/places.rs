//! Where consumers stand at a step, and what each says for it.

use feedline_core::cluster::messages::{GroupPlaces, MarkReport};
use feedline_core::marks::{Base, Count, Mark, Marks, Step};

use super::reports::{read_streams, write_streams};
use super::{WireError, all, required};
use crate::wire;

impl From<Step> for wire::Step {
    fn from(step: Step) -> Self {
        let Step { epochs, rounds, rest } = step;
        Self { epochs, rounds, rest }
    }
}

impl From<wire::Step> for Step {
    fn from(step: wire::Step) -> Self {
        let wire::Step { epochs, rounds, rest } = step;
        Self { epochs, rounds, rest }
    }
}

impl From<Marks> for wire::Marks {
    fn from(marks: Marks) -> Self {
        let base = marks.base();
        let write = |mark: &Mark| wire::Mark {
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

impl TryFrom<wire::Marks> for Marks {
    type Error = WireError;

    fn try_from(marks: wire::Marks) -> Result<Self, WireError> {
        let count = Count { batches: marks.batches, epoch: marks.epoch, of_epoch: marks.of_epoch };
        let base = Base { positions: all(marks.base), count };
        let read = |mark: wire::Mark| {
            let position = required(mark.position, "mark.position")?.into();
            Ok(Mark { lane: mark.lane, position, batch_of: mark.batch_of })
        };
        let list = marks.marks.into_iter().map(read).collect::<Result<_, WireError>>()?;
        Self::of_parts(read_streams(marks.began)?, base, list, marks.foreseen, marks.is_over)
            .map_err(WireError)
    }
}

/// What a report says of marks: two of its fields.
pub(super) fn write_marks(report: MarkReport) -> (Option<wire::Marks>, bool) {
    (report.marks.map(|marks| (*marks).into()), report.is_last)
}

pub(super) fn read_marks(marks: Option<wire::Marks>, is_last: bool) -> Result<MarkReport, WireError> {
    let marks = marks.map(Marks::try_from).transpose()?.map(Box::new);
    Ok(MarkReport { marks, is_last })
}

impl From<GroupPlaces> for wire::GroupPlaces {
    fn from(told: GroupPlaces) -> Self {
        Self { positions: write_streams(told.positions), missing: told.missing, waits: told.waits }
    }
}

impl TryFrom<wire::GroupPlaces> for GroupPlaces {
    type Error = WireError;

    fn try_from(told: wire::GroupPlaces) -> Result<Self, WireError> {
        Ok(Self { positions: read_streams(told.positions)?, missing: told.missing, waits: told.waits })
    }
}
