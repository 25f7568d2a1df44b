//! Jobs are opened, joined and cancelled, or refused with a sentence.

use std::sync::Arc;

use super::job::Job;
use super::messages::{JobSpec, JobState, Refusal, RefusalKind};
use super::prepare::Preparation;
use super::records::Record;
use super::{Cluster, Ready, Reply};
use crate::ids::JobId;
use crate::manifest::Manifest;
use crate::tenants;

/// Longest name of a job in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Most virtual consumers: a coordinator keeps a position for each.
const MAX_VIRTUAL_CONSUMERS: u32 = 65_536;

impl Cluster {
    pub(super) fn on_open_job(
        &mut self,
        spec: JobSpec,
        saved: Option<Arc<Manifest>>,
        ready: &mut Ready,
    ) -> Result<JobId, Refusal> {
        check_spec(&spec).map_err(|message| Refusal::new(RefusalKind::Invalid, message))?;
        let is_same = |job: &&Job| (&job.spec.tenant, &job.spec.name) == (&spec.tenant, &spec.name);
        if let Some(job) = self.jobs.values().filter(is_same).find(|job| !job.is_ended()) {
            if job.spec == spec {
                return Ok(job.id);
            }
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!(
                    "job `{}` is running with other settings; join it with the same pipeline, epochs and consumers, or choose another name",
                    spec.name
                ),
            ));
        }
        self.check_reads(&spec)?;
        self.check_job_room(&spec)?;
        let job = JobId(self.next_job);
        let saved = saved.filter(|_| !spec.reindex);
        self.record(Record::Opened { job, spec: Box::new(spec) }, ready);
        self.preparations.insert(job, Preparation::new(saved));
        Ok(job)
    }

    pub(super) fn on_cancel_job(&mut self, job: JobId, ready: &mut Ready) -> Reply {
        match self.jobs.get(&job) {
            None => Reply::Refused(Refusal::unknown_job(job)),
            Some(found) => {
                if !found.is_ended() {
                    self.end_job(job, JobState::Cancelled, ready);
                }
                Reply::Cancelled
            }
        }
    }
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
    if !(spec.weight > 0.0 && spec.weight.is_finite()) {
        return Err(format!("a job of weight {} gets nothing; give it a weight above 0", spec.weight));
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
    Ok(())
}
