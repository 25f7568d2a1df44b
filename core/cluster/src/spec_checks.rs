//! Checks of a job's specification that do not depend on the dataset.

use feedline_data::messages::JobSpec;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::OrderMode;
use feedline_data::tenants;

/// Maximum length of a job name in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Maximum number of virtual consumers. A coordinator stores a position for each of them.
const MAX_VIRTUAL_CONSUMERS: u32 = 65_536;
/// Maximum number of open ranges in the start position of a relaxed job. Equals the maximum number of splits that its
/// consumers hold together.
const MAX_OPEN_RANGES: usize = 65_536;
/// Maximum size of a specification in bytes. A specification is one log entry, which is sent in one message.
const MAX_SPEC_BYTES: usize = 4 << 20;
/// Maximum number of weight changes of a job's mix. Every worker of the job stores all changes.
pub(crate) const MAX_MIX_CHANGES: usize = 256;
/// Minimum weight of a job.
pub(crate) const MIN_WEIGHT: f64 = 0.01;
/// Maximum weight of a job.
pub(crate) const MAX_WEIGHT: f64 = 100.0;

/// Checks a specification before the dataset is known.
pub(crate) fn check_spec(spec: &JobSpec) -> Result<(), String> {
    tenants::check_name(&spec.tenant)?;
    spec.pipeline.check().map_err(|error| error.to_string())?;
    if spec.name.is_empty() {
        return Err("the job name is empty; set a name".to_owned());
    }
    if spec.name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "the job name is {} bytes long; the limit is {MAX_NAME_BYTES} bytes",
            spec.name.len()
        ));
    }
    if spec.virtual_consumers > MAX_VIRTUAL_CONSUMERS {
        return Err(format!(
            "too many virtual consumers: {}; use at most {MAX_VIRTUAL_CONSUMERS}",
            spec.virtual_consumers
        ));
    }
    if spec.epochs.checked_mul(spec.pipeline.repeat_count()).is_none() {
        return Err(format!(
            "too many passes: {} epochs of {} passes; use fewer epochs or a smaller repeat count",
            spec.epochs,
            spec.pipeline.repeat_count()
        ));
    }
    if spec.epochs == 0 {
        return Err("invalid number of epochs: 0; set epochs to at least 1".to_owned());
    }
    if spec.index_only && spec.pipeline.source.is_unbounded() {
        return Err(
            "a source with `until: none` has no index; run the pipeline, or set `until: latest`".to_owned()
        );
    }
    if spec.epochs > 1 && spec.pipeline.source.is_unbounded() {
        return Err(format!(
            "a job with `until: none` has no end, so it cannot have {} epochs; set epochs to 1, and divide the job with `epoch` in its source",
            spec.epochs
        ));
    }
    if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&spec.weight) {
        return Err(format!(
            "invalid weight {}; use a weight from {MIN_WEIGHT} to {MAX_WEIGHT}",
            spec.weight
        ));
    }
    if spec.consumers == 0 {
        return Err("invalid number of consumers: 0; set consumers to at least 1".to_owned());
    }
    if spec.virtual_consumers < spec.consumers {
        return Err(format!(
            "{} consumers cannot share {} virtual consumers: each consumer needs at least one; set virtual_consumers to at least {}",
            spec.consumers, spec.virtual_consumers, spec.consumers
        ));
    }
    if spec.elastic && spec.pipeline.order == OrderMode::Relaxed {
        return Err(
            "elastic jobs require `order: deterministic`; change the order, or open the job without `elastic`: consumers of a relaxed job can always leave and rejoin".to_owned(),
        );
    }
    check_start(spec)?;
    let bytes = serde_json::to_vec(spec).expect("a specification is plain data").len();
    if bytes > MAX_SPEC_BYTES {
        return Err(format!(
            "the job specification is {bytes} bytes long; the limit is {MAX_SPEC_BYTES} bytes; select the source's files with globs or prefixes, and use fewer virtual consumers"
        ));
    }
    Ok(())
}

/// Checks a start position before the dataset is known.
fn check_start(spec: &JobSpec) -> Result<(), String> {
    let Some(start) = &spec.start else { return Ok(()) };
    if start.streams.len() > spec.virtual_consumers as usize {
        return Err(format!(
            "the position has {} streams, but the job has {}; set virtual_consumers to {}",
            start.streams.len(),
            spec.virtual_consumers,
            start.virtual_consumers
        ));
    }
    check_mix(spec, &start.mix)?;
    if start.open_ranges.len() > MAX_OPEN_RANGES {
        return Err(format!(
            "the position has {} undelivered row ranges, more than the limit of {MAX_OPEN_RANGES}; open the job from an earlier checkpoint",
            start.open_ranges.len()
        ));
    }
    start.ranges.as_ref().map_or(Ok(()), |ranges| ranges.check())
}

/// Checks the weight changes in a start position.
fn check_mix(spec: &JobSpec, changes: &[MixChange]) -> Result<(), String> {
    let datasets = spec.pipeline.source.mix.as_ref().map_or(0, |mix| mix.parts.len());
    if !changes.is_sorted_by_key(|change| (change.pass, change.offset)) || changes.len() > MAX_MIX_CHANGES {
        return Err(format!(
            "invalid position with {} weight changes: expected at most {MAX_MIX_CHANGES} in ascending order; use an unmodified checkpoint",
            changes.len()
        ));
    }
    for change in changes {
        MixChange::check(&change.weights, datasets).map_err(|clause| {
            format!("{clause} in the position at pass {}; use an unmodified checkpoint", change.pass)
        })?;
    }
    Ok(())
}
