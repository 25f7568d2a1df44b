//! Checks of a job's specification against its dataset.

use feedline_data::layout::Layout;
use feedline_data::manifest::{Manifest, Shard};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{OnError, infer};

/// Maximum number of shards of a job. A coordinator stores all shards in memory while they are indexed.
const MAX_SHARDS: usize = 10_000_000;

/// Checks that a pipeline is compatible with its dataset.
pub(crate) fn check_dataset(spec: &JobSpec, manifest: &Manifest) -> Result<(), String> {
    let dataset = manifest.summary();
    if let Some(defect) = first_defect(&manifest.shards)
        && spec.pipeline.on_error == OnError::Fail
    {
        return Err(defect);
    }
    infer(&spec.pipeline, &manifest.schema).map_err(|error| error.to_string())?;
    let passes = spec.pipeline.repeat_count();
    let pass_rows = spec.pipeline.pass_rows(&dataset);
    if let Some(empty) = dataset.part_rows.iter().position(|rows| *rows == 0) {
        return Err(format!("dataset {} of the mix has no rows; remove it from the mix", empty + 1));
    }
    if pass_rows.checked_mul(u64::from(passes)).is_none() || pass_rows == u64::MAX {
        return Err(format!(
            "too many rows per epoch: {passes} passes over {} rows; use a smaller `repeat`",
            dataset.rows
        ));
    }
    let layout = Layout::new(&spec.pipeline, &dataset, spec.epochs, spec.virtual_consumers);
    let rounds = spec.pipeline.max_part_repeats(&dataset);
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
    if dataset.rows < u64::from(spec.virtual_consumers) {
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
        let fingerprint = spec.pipeline.fingerprint();
        start.check(&fingerprint, &dataset, spec.pipeline.order, &layout)?;
    }
    Ok(())
}

/// Describes the first defect that indexing found, with the fix.
pub(crate) fn first_defect(shards: &[Shard]) -> Option<String> {
    let (shard, defect) = shards.iter().find_map(|shard| Some((shard, shard.index.defects.first()?)))?;
    Some(format!(
        "shard {} at byte {}: {}; repair the shard, or set `on_error: skip` to skip the rest of the shard",
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
    use super::*;

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
