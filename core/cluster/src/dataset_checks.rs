//! Checks of a job's specification against its dataset.

use feedline_data::checkpoint::Position;
use feedline_data::layout::Layout;
use feedline_data::manifest::{DatasetSummary, Manifest, Shard};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{OnError, infer};

/// Maximum number of shards of a job. A coordinator stores all shards in memory while they are indexed.
const MAX_SHARDS: usize = 10_000_000;

/// Checks that a pipeline is compatible with its dataset.
pub(crate) fn check_dataset(
    spec: &JobSpec,
    manifest: &Manifest,
    dataset: &DatasetSummary,
) -> Result<(), String> {
    if spec.pipeline.on_error == OnError::Fail
        && let Some(defect) = first_defect(&manifest.shards, OnError::Fail)
    {
        return Err(defect);
    }
    infer(&spec.pipeline, &manifest.schema).map_err(|error| error.to_string())?;
    spec.pipeline.graph_batches(dataset)?;
    let required = spec.pipeline.required_columns(&manifest.schema);
    manifest.check_columns(&spec.pipeline.source, &required)?;
    let passes = spec.pipeline.repeat_count();
    let pass_rows = spec.pipeline.pass_rows(dataset);
    if let Some(empty) = dataset.part_rows.iter().position(|rows| *rows == 0) {
        return Err(format!("dataset {} of the mix has no rows; remove it from the mix", empty + 1));
    }
    if pass_rows.checked_mul(u64::from(passes)).is_none() || pass_rows == u64::MAX {
        return Err(format!(
            "too many rows per epoch: {passes} passes over {} rows; use a smaller `repeat`",
            dataset.rows
        ));
    }
    let layout = layout_of(spec, dataset);
    let rounds = spec.pipeline.max_part_repeats(dataset);
    if spec.epochs.checked_mul(layout.passes).and_then(|passes| passes.checked_mul(rounds)).is_none() {
        return Err(format!(
            "too many passes: {} epochs of {} passes exceed {}; use fewer epochs or a smaller `repeat`",
            spec.epochs,
            layout.passes,
            u32::MAX
        ));
    }
    if layout.total_splits().is_none() {
        return Err(format!(
            "too many rows: {} epochs of {} rows; use fewer epochs or a smaller `repeat`",
            spec.epochs,
            layout.epoch_rows()
        ));
    }
    if !layout.unbounded && dataset.rows < u64::from(spec.virtual_consumers) {
        return Err(format!(
            "the job has {} virtual consumers, but the dataset has only {} rows; use fewer consumers",
            spec.virtual_consumers, dataset.rows
        ));
    }
    if layout.dropped_rows() == layout.epoch_rows() {
        return Err(format!(
            "`remainder: drop` would drop all rows: the dataset has {} rows, fewer than one batch of {} rows for each of {} consumers; use a smaller batch or `remainder: emit`",
            layout.epoch_rows(),
            layout.batch_rows,
            layout.streams
        ));
    }
    if let Some(start) = &spec.start {
        let pipeline = spec.pipeline.id();
        start.check(&pipeline, spec.accept_changed_pipeline, dataset, spec.pipeline.order, &layout)?;
    }
    Ok(())
}

/// Returns the layout of a job. A job that resumes keeps the length of splits in its position.
pub(crate) fn layout_of(spec: &JobSpec, dataset: &DatasetSummary) -> Layout {
    let layout = Layout::new(&spec.pipeline, dataset, spec.epochs, spec.virtual_consumers);
    match spec.start.as_ref().and_then(Position::stored_split_rows) {
        Some(split_rows) => layout.resumed(split_rows),
        None => layout,
    }
}

/// Checks that the start position of a job refers to the content of its dataset. `saved_with` is the index that the position
/// was saved with, if it is known.
pub(crate) fn check_start(
    spec: &JobSpec,
    manifest: &Manifest,
    saved_with: Option<&Manifest>,
) -> Result<(), String> {
    let Some(start) = &spec.start else { return Ok(()) };
    let saved_with = saved_with.filter(|saved| saved.content_id().is_same_content(&start.content));
    start.check_content(&manifest.summary(), manifest, saved_with, spec.accept_reuploaded)
}

/// Describes the first defect that indexing found, with the fix.
pub(crate) fn first_defect(shards: &[Shard], on_error: OnError) -> Option<String> {
    let (shard, defect) = shards.iter().find_map(|shard| Some((shard, shard.index.defects.first()?)))?;
    let advice = match on_error {
        OnError::Fail => ", or set `on_error: skip` to skip the rest of the shard",
        _ => "",
    };
    Some(format!(
        "shard {} at byte {}: {}; repair the shard{advice}",
        shard.object.url, defect.offset, defect.reason
    ))
}

/// Checks the number of shards of a job.
pub(crate) fn check_shard_count(shards: usize) -> Result<(), String> {
    if shards > MAX_SHARDS {
        return Err(format!(
            "the source has {shards} shards, more than the limit of {MAX_SHARDS}; pack the rows into larger shards, or select fewer files"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use feedline_data::checkpoint::{Fingerprints, JobStep};
    use feedline_data::manifest::{Block, ShardIndex, ShardRef};
    use feedline_data::pipeline::{Pipeline, Source};
    use feedline_data::schema::{ColumnType, ScalarType, Schema};

    use super::*;

    /// A dataset of 100,000 seeds.
    fn seeds(batch_bytes: u64) -> DatasetSummary {
        let blocks =
            vec![Block { rows: 100_000, offset: 0, bytes: 400_000, group: 0, row_bytes: Vec::new() }];
        let schema = Some(Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]));
        let index = ShardIndex { blocks, schema, ..ShardIndex::default() };
        let url = "file:///g/seeds/train.arrow".to_owned();
        let shard = Shard::simulated(ShardRef { url, size_bytes: 1, ..ShardRef::default() }, index);
        let manifest = Manifest::build(vec![shard]).expect("the shard has rows");
        DatasetSummary { batch_bytes: Some(batch_bytes), ..manifest.summary() }
    }

    #[test]
    fn a_resumed_job_keeps_its_splits_although_the_expected_size_of_a_batch_has_changed() {
        let builder = Pipeline::builder("papers").source(Source::graph("g"));
        let pipeline = builder.sample_neighbors(100, &[10], &[]).build().expect("valid");
        let (spec, before, after) = (JobSpec::new(pipeline), seeds(1 << 20), seeds(128 << 20));
        let original = layout_of(&spec, &before);
        assert_eq!((original.split_rows, layout_of(&spec, &after).split_rows), (12_500, 200));
        let fingerprints = Fingerprints {
            pipeline: spec.pipeline.id(),
            dataset: before.fingerprint.clone(),
            content: before.content.clone(),
        };
        let step = JobStep { ranks: 1, epoch: 0, step: 3, streams_ahead: 0 };
        let start = Position::at_step(&original, fingerprints, step);
        let resumed = JobSpec { start: Some(start.clone()), ..spec };
        let layout = layout_of(&resumed, &after);
        assert_eq!(layout, original);
        let pipeline = &resumed.pipeline;
        assert_eq!(start.check(&pipeline.id(), false, &after, pipeline.order, &layout), Ok(()));
    }

    #[test]
    fn a_job_has_at_most_ten_million_shards() {
        assert_eq!(check_shard_count(MAX_SHARDS), Ok(()));
        let message = check_shard_count(MAX_SHARDS + 1).expect_err("one shard too many");
        assert!(
            message.starts_with("the source has 10000001 shards, more than the limit of 10000000;"),
            "{message}"
        );
    }
}
