//! Jobs are opened, joined and cancelled, or refused with a sentence.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobSpec, JobState, ServiceError, ServiceErrorKind};
use feedline_data::mix::MixChange;
use feedline_data::pipeline::OrderMode;
use feedline_data::tenants;

use super::job::TrackedJob;

use super::mix_changes::MOST_CHANGES;
use super::prepare::Preparation;
use super::records::Record;
use super::{Cluster, Ready, Reply};

/// Longest name of a job in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Most virtual consumers: a coordinator keeps a position for each.
const MAX_VIRTUAL_CONSUMERS: u32 = 65_536;
/// Most ranges of rows that a relaxed job's start leaves open: as many splits as its consumers can hold together.
const MAX_OPEN_RANGES: usize = 65_536;
/// A job that takes more bytes to keep is refused: it is one entry of the log, which every coordinator is sent in one message.
const MAX_SPEC_BYTES: usize = 4 << 20;
/// Smallest and largest weight of a job.
pub(super) const LEAST_WEIGHT: f64 = 0.01;
pub(super) const MOST_WEIGHT: f64 = 100.0;

impl Cluster {
    pub(super) fn on_open_job(
        &mut self,
        spec: JobSpec,
        saved: Option<Arc<Manifest>>,
        ready: &mut Ready,
    ) -> Result<JobId, ServiceError> {
        if let Some(job) = self.joined(&spec, true)? {
            return Ok(job);
        }
        let job = JobId(self.next_job);
        let saved = saved.filter(|_| !spec.reindex);
        self.record(Record::Opened { job, spec: Box::new(spec) }, ready);
        self.preparations.insert(job, Preparation::new(saved, self.turn));
        Ok(job)
    }

    /// Joins a job, or says whether it may be opened; decides nothing.
    pub(super) fn on_join_job(&self, spec: &JobSpec, may_open: bool) -> Reply {
        match self.joined(spec, may_open) {
            Ok(Some(job)) => Reply::Opened(job),
            Ok(None) => Reply::MayOpen,
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    /// The open job with this name and spec; `None` where there is none and it may be opened.
    fn joined(&self, spec: &JobSpec, may_open: bool) -> Result<Option<JobId>, ServiceError> {
        check_spec(spec).map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))?;
        let is_same = |job: &&TrackedJob| (&job.spec.tenant, &job.spec.name) == (&spec.tenant, &spec.name);
        if let Some(job) = self.jobs.values().filter(is_same).find(|job| !job.is_ended()) {
            if is_same_job(&job.spec, spec) {
                return Ok(Some(job.id));
            }
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "job `{}` is running with other settings; join it with the same pipeline, epochs and consumers, or choose another name",
                    spec.name
                ),
            ));
        }
        if !may_open {
            let message = format!(
                "no job `{}` is open; have it opened by someone who may, and join it then",
                spec.name
            );
            return Err(ServiceError::new(ServiceErrorKind::Denied, message));
        }
        self.check_reads(spec)?;
        self.check_job_room(spec)?;
        Ok(None)
    }

    pub(super) fn on_cancel_job(&mut self, job: JobId, ready: &mut Ready) -> Reply {
        match self.jobs.get(&job) {
            None => Reply::Refused(ServiceError::unknown_job(job)),
            Some(found) => {
                if !found.is_ended() {
                    self.end_job(job, JobState::Cancelled, ready);
                }
                Reply::Cancelled
            }
        }
    }
}

/// Whether two specs are of one job. Ranks that come later to an elastic one expect another number of ranks, and each has sent its functions in
/// bytes of its own.
fn is_same_job(open: &JobSpec, asked: &JobSpec) -> bool {
    let mut asked = asked.clone();
    if open.elastic && asked.elastic {
        asked.consumers = open.consumers;
    }
    asked.pipeline.adopt_function_code(&open.pipeline);
    *open == asked
}

/// What can be refused before the dataset is known.
fn check_spec(spec: &JobSpec) -> Result<(), String> {
    tenants::check_name(&spec.tenant)?;
    spec.pipeline.check().map_err(|error| error.to_string())?;
    if spec.name.is_empty() {
        return Err("the job has no name; give it one".to_owned());
    }
    if spec.name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "the job's name has {} bytes; give it one of at most {MAX_NAME_BYTES}",
            spec.name.len()
        ));
    }
    if spec.virtual_consumers > MAX_VIRTUAL_CONSUMERS {
        return Err(format!(
            "{} virtual consumers are more than the {MAX_VIRTUAL_CONSUMERS} of a job; open it with fewer",
            spec.virtual_consumers
        ));
    }
    if spec.epochs.checked_mul(spec.pipeline.repeat_count()).is_none() {
        return Err(format!(
            "{} epochs of {} passes are more than can be counted; set epochs or repeat to less",
            spec.epochs,
            spec.pipeline.repeat_count()
        ));
    }
    if spec.epochs == 0 {
        return Err("a job of 0 epochs has no rows; set epochs to 1 or more".to_owned());
    }
    if !(LEAST_WEIGHT..=MOST_WEIGHT).contains(&spec.weight) {
        return Err(format!(
            "a job cannot have weight {}; give it one from {LEAST_WEIGHT} to {MOST_WEIGHT}",
            spec.weight
        ));
    }
    if spec.consumers == 0 {
        return Err("a job needs at least 1 consumer; set consumers to 1 or more".to_owned());
    }
    if spec.virtual_consumers < spec.consumers {
        return Err(format!(
            "{} consumers cannot share {} virtual consumers: each needs at least one; open the job with virtual_consumers {} or more",
            spec.consumers, spec.virtual_consumers, spec.consumers
        ));
    }
    if spec.elastic && spec.pipeline.order == OrderMode::Relaxed {
        return Err(
            "an elastic job has fixed slots, which order: relaxed has not; use order: deterministic, or open the job without elastic: consumers of a relaxed one may be lost and come back as it is".to_owned(),
        );
    }
    check_start(spec)?;
    let bytes = serde_json::to_vec(spec).expect("a job is plain data").len();
    if bytes > MAX_SPEC_BYTES {
        return Err(format!(
            "the job takes {bytes} bytes to keep, more than {MAX_SPEC_BYTES}; name the source's files by globs or prefixes, and use fewer virtual consumers"
        ));
    }
    Ok(())
}

/// What of a start can be refused before the dataset is known.
fn check_start(spec: &JobSpec) -> Result<(), String> {
    let Some(start) = &spec.start else { return Ok(()) };
    if start.streams.len() > spec.virtual_consumers as usize {
        return Err(format!(
            "the position has {} streams, the job {}; open the job with virtual_consumers {}",
            start.streams.len(),
            spec.virtual_consumers,
            start.virtual_consumers
        ));
    }
    check_mix(spec, &start.mix)?;
    if start.open.len() > MAX_OPEN_RANGES {
        return Err(format!(
            "the position leaves {} ranges of rows open, more than {MAX_OPEN_RANGES}; open the job from an earlier position",
            start.open.len()
        ));
    }
    Ok(())
}

/// What of a start's changes of weights can be refused.
fn check_mix(spec: &JobSpec, changes: &[MixChange]) -> Result<(), String> {
    let datasets = spec.pipeline.source.mix.as_ref().map_or(0, |mix| mix.parts.len());
    if !changes.is_sorted_by_key(|change| (change.pass, change.place)) || changes.len() > MOST_CHANGES {
        return Err(format!(
            "the position has {} changes of weights, at most {MOST_CHANGES} in their order are read; the file was edited",
            changes.len()
        ));
    }
    for change in changes {
        MixChange::check(&change.weights, datasets).map_err(|clause| {
            format!(
                "{clause} in the position, which changes weights in pass {}; the file was edited",
                change.pass
            )
        })?;
    }
    Ok(())
}
