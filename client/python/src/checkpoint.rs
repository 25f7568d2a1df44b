//! Computes the positions of training checkpoints from a layout, without a job.

use feedline_data::checkpoint::{Fingerprints, JobStep, Position};
use feedline_data::layout::Layout;
use feedline_data::manifest::ContentId;
use pyo3::prelude::*;

use crate::errors::WrongUse;

/// Maximum number of virtual consumers of a job.
const MAX_SLOTS: u32 = 65_536;

fn parse_layout(text: &str) -> PyResult<Layout> {
    let layout: Layout = serde_json::from_str(text)
        .map_err(|error| WrongUse::new_err(format!("invalid layout in the state: {error}")))?;
    let sizes = [layout.split_rows, u64::from(layout.batch_rows), u64::from(layout.streams)];
    if sizes.contains(&0) || layout.streams > MAX_SLOTS {
        return Err(WrongUse::new_err(
            "invalid layout in the state: a size is 0 or too large; pass the unmodified result of state_dict()",
        ));
    }
    Ok(layout)
}

/// Returns the position of a job before step `step` of `epoch`, as JSON. Slot `s` is slot `s // ranks` of its rank. The first
/// `slots_ahead` slots of each rank have already delivered the step.
#[pyfunction]
pub(crate) fn position_at_step(
    layout: &str,
    fingerprints: (String, String),
    ranks: u32,
    epoch: u32,
    step: u64,
    slots_ahead: u32,
) -> PyResult<String> {
    let (pipeline, dataset) = fingerprints;
    // The caller adds the content id of the state.
    let content = ContentId::default();
    let at = JobStep { ranks, epoch, step, streams_ahead: slots_ahead };
    let position = Position::at_step(
        &parse_layout(layout)?,
        Fingerprints { pipeline: pipeline.into(), dataset, content },
        at,
    );
    serde_json::to_string(&position).map_err(|error| WrongUse::new_err(error.to_string()))
}

/// Returns the number of steps in an epoch of a job with this layout. `None` if it depends on the rows.
#[pyfunction]
pub(crate) fn steps_per_epoch(layout: &str) -> PyResult<Option<u64>> {
    Ok(parse_layout(layout)?.steps())
}
