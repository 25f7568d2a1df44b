//! Places in a job as a training checkpoint holds them: a step of an epoch, from which the position of every slot follows.

use feedline_data::layout::{Layout, StreamPosition};
use feedline_data::pipeline::OrderMode;
use feedline_data::position::{POSITION_VERSION, Position};
use pyo3::prelude::*;

use crate::errors::WrongUse;

/// Slots of a job at most.
const MOST_SLOTS: u32 = 65_536;

/// The place of `slot` before step `step` of `epoch`.
fn at_step(layout: &Layout, slot: u32, epoch: u32, step: u64) -> StreamPosition {
    let end = StreamPosition { epoch: layout.epochs, row: 0 };
    if epoch >= layout.epochs {
        return end;
    }
    if layout.steps().is_some_and(|steps| step >= steps) {
        return at_step(layout, slot, epoch + 1, 0);
    }
    let row = step.saturating_mul(u64::from(layout.batch_rows)).min(layout.stream_rows(slot));
    layout.normalise(slot, StreamPosition { epoch, row })
}

fn layout_of(text: &str) -> PyResult<Layout> {
    let layout: Layout = serde_json::from_str(text)
        .map_err(|error| WrongUse::new_err(format!("the state has no readable layout: {error}")))?;
    let sizes = [layout.split_rows, u64::from(layout.batch_rows), u64::from(layout.streams)];
    if sizes.contains(&0) || layout.streams > MOST_SLOTS {
        return Err(WrongUse::new_err("the state has a layout that no job has; it was edited"));
    }
    Ok(layout)
}

/// The position of every slot, as JSON that a job starts from, where each of `ranks` ranks stands before step `step` of `epoch` and
/// its first `ahead` slots before the step after that. Slot `s` is the `s / ranks`-th of its rank, and all ranks stand alike, since
/// the layout gives each slot the same number of steps.
#[pyfunction]
pub(crate) fn place_of_step(
    layout: &str,
    fingerprints: (String, String),
    ranks: u32,
    epoch: u32,
    step: u64,
    ahead: u32,
) -> PyResult<String> {
    let (layout, (pipeline, dataset)) = (layout_of(layout)?, fingerprints);
    let step_of = |slot: u32| step + u64::from(slot / ranks.max(1) < ahead);
    let position = Position {
        version: POSITION_VERSION,
        pipeline,
        dataset,
        order: OrderMode::Deterministic,
        virtual_consumers: layout.streams,
        streams: (0..layout.streams).map(|slot| at_step(&layout, slot, epoch, step_of(slot))).collect(),
        open: Vec::new(),
        mix: layout.mix_from(epoch).to_vec(),
    };
    serde_json::to_string(&position).map_err(|error| WrongUse::new_err(error.to_string()))
}

/// Steps in an epoch of a job with this layout; `None` where only its rows tell.
#[pyfunction]
pub(crate) fn steps_of_epoch(layout: &str) -> PyResult<Option<u64>> {
    Ok(layout_of(layout)?.steps())
}
