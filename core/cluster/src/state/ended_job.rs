//! What an ended job keeps of its specification. The last ended jobs are part of every snapshot, and a specification may have 4 MiB.

use feedline_data::checkpoint::Position;
use feedline_data::layout::Layout;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{Format, Pipeline, PipelineId, Source};
use serde::{Deserialize, Serialize};

/// Maximum size in bytes of a specification that an ended job keeps. Those of most jobs are smaller, so that late consumers receive
/// the details of a completed job.
const MAX_KEPT_SPEC_BYTES: usize = 64 << 10;

/// What the position of an ended job needs of a pipeline that is no longer stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DroppedPipeline {
    /// The id of the pipeline.
    pub(crate) pipeline: PipelineId,
    /// The layout of the job, without weight changes.
    pub(crate) layout: Layout,
}

impl DroppedPipeline {
    pub(crate) fn new(pipeline: PipelineId, layout: &Layout) -> Self {
        Self { pipeline, layout: Layout { mix_changes: Vec::new(), ..layout.clone() } }
    }
}

/// Drops the pipeline and most of the start position of an ended job, if its specification is large. Returns the id of a dropped
/// pipeline, unless the dataset was never indexed, because such a job has no position. The decision depends only on records, so all
/// coordinators make the same one.
pub(crate) fn drop_large_spec(spec: &mut JobSpec, is_indexed: bool) -> Option<PipelineId> {
    if spec_bytes(spec) <= MAX_KEPT_SPEC_BYTES {
        return None;
    }
    let pipeline = is_indexed.then(|| spec.pipeline.id());
    spec.pipeline = without_rows(&spec.pipeline);
    spec.start = spec.start.take().filter(|_| is_indexed).map(without_ranges);
    pipeline
}

fn spec_bytes(spec: &JobSpec) -> usize {
    serde_json::to_vec(spec).expect("a specification is plain data").len()
}

/// Returns the parts of a pipeline that do not depend on its source and its operators.
fn without_rows(pipeline: &Pipeline) -> Pipeline {
    Pipeline {
        name: pipeline.name.clone(),
        source: Source::new(Format::Files, ""),
        seed: pipeline.seed,
        shuffle: pipeline.shuffle.clone(),
        order: pipeline.order,
        on_error: pipeline.on_error,
        operators: Vec::new(),
    }
}

/// Returns a start position with the streams, which the lookup of steps needs, and the length of splits.
fn without_ranges(start: Position) -> Position {
    let split_rows = start.stored_split_rows();
    Position { open_ranges: Vec::new(), mix: Vec::new(), growth: None, ranges: None, split_rows, ..start }
}
