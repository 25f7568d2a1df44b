//! Jobs are opened, joined and cancelled, or refused with a sentence.

use std::sync::Arc;

use super::messages::{JobSpec, JobState, Refusal, RefusalKind};
use super::prepare::Preparation;
use super::records::Record;
use super::{Cluster, Ready, Reply};
use crate::ids::JobId;
use crate::manifest::Manifest;

impl Cluster {
    pub(super) fn on_open_job(
        &mut self,
        spec: JobSpec,
        saved: Option<Arc<Manifest>>,
        ready: &mut Ready,
    ) -> Result<JobId, Refusal> {
        check_spec(&spec).map_err(|message| Refusal::new(RefusalKind::Invalid, message))?;
        if let Some(job) = self.jobs.values().find(|job| job.spec.name == spec.name && !job.is_ended()) {
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
        let job = JobId(self.next_job);
        let saved = saved.filter(|_| !spec.reindex);
        self.record(Record::Opened { job, spec: Box::new(spec) }, ready);
        self.preparations.insert(job, Preparation::new(saved));
        Ok(job)
    }

    pub(super) fn on_cancel_job(&mut self, job: JobId, ready: &mut Ready) -> Reply {
        match self.jobs.get(&job) {
            None => Reply::Refused(unknown_job(job)),
            Some(found) => {
                if !found.is_ended() {
                    self.end_job(job, JobState::Cancelled, ready);
                }
                Reply::Cancelled
            }
        }
    }
}

pub(super) fn unknown_job(job: JobId) -> Refusal {
    Refusal::new(
        RefusalKind::NotFound,
        format!("there is no job {job} here; `feedline jobs` lists the jobs of a coordinator"),
    )
}

/// What can be refused before the dataset is known.
fn check_spec(spec: &JobSpec) -> Result<(), String> {
    spec.pipeline.check().map_err(|error| error.to_string())?;
    if spec.name.is_empty() {
        return Err("the job has no name; give it one".to_owned());
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
