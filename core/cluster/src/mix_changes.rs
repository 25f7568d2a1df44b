//! Changes to the weights of a mix while its job runs. A change takes effect after all granted splits, so it does not affect
//! rows that workers compute or consumers have received.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{JobMixChanges, ServiceError, ServiceErrorKind};
use feedline_data::mix::MixChange;
use feedline_data::pipeline::MixStop;

use crate::records::Record;
use crate::spec_checks::MAX_MIX_CHANGES;
use crate::state::job::TrackedJob;
use crate::{Cluster, Ready, Reply, RequestId};

/// Maximum number of changes within one pass. A position in the pass contains all of these changes.
const MAX_CHANGES_IN_PASS: usize = 8;

impl Cluster {
    pub(crate) fn on_set_weights(
        &mut self,
        request: RequestId,
        job: JobId,
        weights: Vec<f64>,
        ready: &mut Ready,
    ) {
        let reply = self.set_weights(job, weights, ready).map_or_else(Reply::Rejected, Reply::WeightsChanged);
        ready.replies.push((request, reply));
    }

    fn set_weights(
        &mut self,
        id: JobId,
        weights: Vec<f64>,
        ready: &mut Ready,
    ) -> Result<MixChange, ServiceError> {
        let job = self.jobs.get(&id).ok_or_else(|| ServiceError::unknown_job(id))?;
        let change = job.mix_change(weights)?;
        self.record(Record::WeightsChanged { job: id, change: change.clone() }, ready);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.touch_all_consumers();
        }
        let workers: Vec<WorkerId> =
            self.jobs.get(&id).into_iter().flat_map(|job| &job.workers).copied().collect();
        for worker in workers {
            if let Some(worker) = self.workers.get_mut(&worker) {
                worker.revision += 1;
            }
        }
        Ok(change)
    }

    /// Returns the weight changes of the given jobs. Omits jobs without changes.
    pub(crate) fn mix_changes(&self, jobs: impl IntoIterator<Item = JobId>) -> Vec<JobMixChanges> {
        let changes_of = |id: JobId| {
            let changes = &self.jobs.get(&id)?.layout.as_ref()?.mix_changes;
            (!changes.is_empty()).then(|| JobMixChanges { job: id, changes: changes.clone() })
        };
        jobs.into_iter().filter_map(changes_of).collect()
    }
}

impl TrackedJob {
    /// Returns a change that sets these weights at the first offset after all granted splits.
    fn mix_change(&self, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        let refuse = |message: String| ServiceError::new(ServiceErrorKind::Invalid, message);
        let name = &self.spec.name;
        if self.is_ended() {
            return Err(refuse(format!(
                "job {name:?} has ended; weights can be changed only while a job is running"
            )));
        }
        let Some(mix) = &self.spec.pipeline.source.mix else {
            return Err(refuse(format!(
                "job {name:?} has no `mix`; weights apply only to the datasets in a `mix`"
            )));
        };
        if mix.stop == MixStop::First {
            return Err(refuse(format!(
                "cannot change the weights of job {name:?}: with `stop: first`, the weights determine where a pass ends; use `stop: all` or `stop: restart`"
            )));
        }
        MixChange::check(&weights, mix.parts.len()).map_err(|clause| {
            refuse(format!("{clause}; pass one weight for each dataset in the mix of job {name:?}, in order"))
        })?;
        let Some(layout) = &self.layout else {
            let message = format!("job {name:?} is still preparing; retry");
            return Err(ServiceError::new(ServiceErrorKind::Unavailable, message));
        };
        let first = (0..).zip(self.streams.positions()).filter_map(|(stream, at)| layout.locate(stream, *at));
        let first = first.map(|(split, _)| (split.epoch, split.ordinal)).max();
        let after =
            self.last_granted.max(first).and_then(|(epoch, round)| layout.start_after_round(epoch, round));
        let Some((pass, place)) = after else {
            return Err(refuse(format!(
                "all rows of job {name:?} are already leased, so new weights would have no effect; use a smaller `buffer` in its consumers"
            )));
        };
        let in_pass =
            layout.mix_changes.iter().filter(|change| change.pass == pass && change.offset != place).count();
        if in_pass >= MAX_CHANGES_IN_PASS || layout.mix_changes.len() >= MAX_MIX_CHANGES {
            return Err(refuse(format!(
                "the weights of job {name:?} have been changed {} times, {in_pass} times in pass {pass}; the limits are {MAX_MIX_CHANGES} changes per job and {MAX_CHANGES_IN_PASS} per pass: wait for the next pass, or open a new job from the job's position",
                layout.mix_changes.len()
            )));
        }
        Ok(MixChange { pass, offset: place, weights })
    }
}
