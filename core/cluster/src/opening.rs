//! Opens, joins and cancels jobs.

use feedline_data::ids::JobId;
use feedline_data::messages::{JobSpec, JobState, ServiceError, ServiceErrorKind};

use crate::records::Record;
use crate::spec_checks::check_spec;
use crate::{Cluster, Ready, Reply, SavedIndexes};

impl Cluster {
    pub(crate) fn on_open_job(
        &mut self,
        spec: JobSpec,
        saved: SavedIndexes,
        ready: &mut Ready,
    ) -> Result<JobId, ServiceError> {
        if let Some(job) = self.find_open_job(&spec, true)? {
            return Ok(job);
        }
        let job = JobId(self.next_job);
        let latest = saved.latest.filter(|_| !spec.reindex);
        let saved = SavedIndexes { latest, ..saved };
        self.record(Record::Opened { job, spec: Box::new(spec) }, ready);
        self.begin_preparation(job, saved);
        Ok(job)
    }

    /// Joins a job, or replies whether the client may open the job. Does not change any state.
    pub(crate) fn on_join_job(&self, spec: &JobSpec, may_open: bool) -> Reply {
        match self.find_open_job(spec, may_open) {
            Ok(Some(job)) => Reply::Opened(job),
            Ok(None) => Reply::MayOpen,
            Err(refusal) => Reply::Rejected(refusal),
        }
    }

    /// Returns the open job with this name and specification, or `None` if the job is not open and the client may open it.
    fn find_open_job(&self, spec: &JobSpec, may_open: bool) -> Result<Option<JobId>, ServiceError> {
        let invalid = |message| ServiceError::new(ServiceErrorKind::Invalid, message);
        check_spec(spec).map_err(invalid)?;
        let open = self.open_jobs.get(&(spec.tenant.clone(), spec.name.clone()));
        if let Some(job) = open.and_then(|id| self.jobs.get(id)) {
            if is_same_job(&job.spec, spec) {
                return Ok(Some(job.id));
            }
            return Err(invalid(format!(
                "job `{}` is running with different settings; join it with the same pipeline, epochs and consumers, or choose another job name",
                spec.name
            )));
        }
        if !may_open {
            let message = format!(
                "job `{}` is not open, and this token may only join jobs; open the job with another token first",
                spec.name
            );
            return Err(ServiceError::new(ServiceErrorKind::Denied, message));
        }
        self.check_reads(spec)?;
        self.check_job_limits(spec)?;
        Ok(None)
    }

    pub(crate) fn on_cancel_job(&mut self, job: JobId, ready: &mut Ready) -> Reply {
        let Some(found) = self.jobs.get(&job) else { return Reply::Rejected(ServiceError::unknown_job(job)) };
        if !found.is_ended() {
            self.end_job(job, JobState::Cancelled, ready);
        }
        Reply::Cancelled
    }
}

/// Whether two specifications define the same job. Ranks that join an elastic job later may specify a different number of
/// ranks, and each client pickles its functions itself.
fn is_same_job(open: &JobSpec, requested: &JobSpec) -> bool {
    let mut requested = requested.clone();
    if open.elastic && requested.elastic {
        requested.consumers = open.consumers;
    }
    // The job has already started.
    requested.accept_reuploaded = open.accept_reuploaded;
    requested.accept_changed_pipeline = open.accept_changed_pipeline;
    requested.pipeline.adopt_function_code(&open.pipeline);
    *open == requested
}
