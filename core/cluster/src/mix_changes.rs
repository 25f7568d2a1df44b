//! Weights of a mix that are changed while its job runs. A change holds from behind everything that was ever granted, so that no row that
//! somebody has, or computes, becomes another one.

use feedline_data::ids::JobId;
use feedline_data::messages::{JobMixChanges, ServiceError, ServiceErrorKind};
use feedline_data::mix::MixChange;
use feedline_data::pipeline::MixStop;

use super::job::TrackedJob;

use super::records::Record;
use super::{Cluster, Ready, Reply, RequestId};

/// Changes of one job: all who compute its rows hold them.
pub(super) const MOST_CHANGES: usize = 256;
/// Changes within one pass: positions in it have them all.
const MOST_IN_A_PASS: usize = 8;

impl Cluster {
    pub(super) fn on_set_weights(
        &mut self,
        request: RequestId,
        job: JobId,
        weights: Vec<f64>,
        ready: &mut Ready,
    ) {
        let reply = self.set_weights(job, weights, ready).map_or_else(Reply::Refused, Reply::Remixed);
        ready.replies.push((request, reply));
    }

    fn set_weights(
        &mut self,
        id: JobId,
        weights: Vec<f64>,
        ready: &mut Ready,
    ) -> Result<MixChange, ServiceError> {
        let job = self.jobs.get(&id).ok_or_else(|| ServiceError::unknown_job(id))?;
        let change = job.change_to(weights)?;
        self.record(Record::Remixed { job: id, change: change.clone() }, ready);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.touch_all_consumers();
        }
        // Whoever has leases hears of it before it gets others; it may as well be now.
        for worker in self.workers.values_mut().filter(|worker| worker.worked_on(id)) {
            worker.revision += 1;
        }
        Ok(change)
    }

    /// The changes of the jobs that a worker has leases of.
    pub(super) fn mixes(&self, jobs: impl IntoIterator<Item = JobId>) -> Vec<JobMixChanges> {
        let of = |id: JobId| {
            let changes = &self.jobs.get(&id)?.layout.as_ref()?.mix;
            (!changes.is_empty()).then(|| JobMixChanges { job: id, changes: changes.clone() })
        };
        jobs.into_iter().filter_map(of).collect()
    }
}

impl TrackedJob {
    /// Where these weights would hold from.
    fn change_to(&self, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        let refuse = |message: String| ServiceError::new(ServiceErrorKind::Invalid, message);
        let name = &self.spec.name;
        if self.is_ended() {
            return Err(refuse(format!(
                "job {name:?} has ended; only a job that runs can be given other weights"
            )));
        }
        let Some(mix) = &self.spec.pipeline.source.mix else {
            return Err(refuse(format!(
                "job {name:?} reads one dataset; only those of a `mix` have weights"
            )));
        };
        if mix.stop == MixStop::First {
            return Err(refuse(format!(
                "the mix of job {name:?} has `stop: first`, so its weights tell where a pass ends and stay as they are; use all or restart"
            )));
        }
        MixChange::check(&weights, mix.parts.len()).map_err(|clause| {
            refuse(format!("{clause}; give job {name:?} one for each dataset of its mix, in its order"))
        })?;
        let Some(layout) = &self.layout else {
            let message = format!("job {name:?} is still being prepared; ask again");
            return Err(ServiceError::new(ServiceErrorKind::Unavailable, message));
        };
        let begun = (0..).zip(&self.streams).filter_map(|(stream, at)| layout.locate(stream, *at));
        let begun = begun.map(|(split, _)| (split.epoch, split.ordinal)).max();
        let behind =
            self.granted.max(begun).and_then(|(epoch, round)| layout.start_after_round(epoch, round));
        let Some((pass, place)) = behind else {
            return Err(refuse(format!(
                "all rows of job {name:?} are on their way already, so other weights would hold for none; a smaller `buffer` of its consumers fetches less ahead"
            )));
        };
        let in_pass = layout.mix.iter().filter(|change| change.pass == pass && change.place != place).count();
        if in_pass >= MOST_IN_A_PASS || layout.mix.len() >= MOST_CHANGES {
            return Err(refuse(format!(
                "the weights of job {name:?} have changed {} times, {in_pass} times in pass {pass}; at most {MOST_CHANGES} and {MOST_IN_A_PASS} \
                 are kept: wait for the next pass, or open a job from its position",
                layout.mix.len()
            )));
        }
        Ok(MixChange { pass, place, weights })
    }

    /// A change at the same place displaces the one before: nobody has seen a row of it.
    pub(super) fn apply_remixed(&mut self, change: &MixChange) {
        let Some(layout) = &mut self.layout else { return };
        layout.mix.retain(|known| (known.pass, known.place) < (change.pass, change.place));
        layout.mix.push(change.clone());
    }
}
