//! The commits of delivered offsets that the plan requests, and their outcomes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::ids::JobId;
use feedline_data::layout::Layout;
use feedline_data::manifest::Manifest;
use feedline_data::messages::GroupCommit;
use feedline_data::pipeline::Pipeline;
use feedline_sources::Dataset;

use crate::metrics;

/// Number of jobs without a commit in the plan whose last offsets are remembered. The first plans of a new leader contain no commits.
const MAX_PAST_JOBS: usize = 64;

/// The commits of the plan.
#[derive(Default)]
pub(crate) struct OffsetCommitter {
    jobs: Mutex<BTreeMap<JobId, JobCommit>>,
}

/// The commits of one job.
#[derive(Default)]
struct JobCommit {
    /// The commit of the plan; `None` if the plan has none any more.
    wanted: Option<GroupCommit>,
    is_running: bool,
    /// Whether the last commit failed, which was logged.
    has_failed: bool,
    source: Option<Arc<CommitSource>>,
    /// The turn of the last commit among those of all jobs.
    turn: u64,
    /// The largest offset of each partition that this worker has written or may have written.
    largest: BTreeMap<String, BTreeMap<i32, u64>>,
}

/// What a commit needs of a job, also after the job has ended.
pub(super) struct CommitSource {
    pub(super) pipeline: Pipeline,
    pub(super) layout: Layout,
    pub(super) manifest: Arc<Manifest>,
    pub(super) dataset: Dataset,
}

impl OffsetCommitter {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, JobCommit>> {
        self.jobs.lock().expect("no thread panics while it holds the commits")
    }

    /// Replaces the commits. Returns the jobs whose commits must be started. A commit that the plan no longer contains is not tried
    /// again, because another worker may write a newer one.
    pub(super) fn replace(&self, commits: &[GroupCommit]) -> Vec<JobId> {
        let mut jobs = self.lock();
        let mut past = Vec::new();
        for (job, commit) in jobs.iter_mut() {
            if commits.iter().any(|wanted| wanted.job == *job) {
                continue;
            }
            commit.wanted = None;
            if !commit.is_running {
                commit.source = None;
                past.push(*job);
            }
        }
        past.sort_by_key(|job| jobs.get(job).map(|commit| commit.turn));
        for job in past.iter().take(past.len().saturating_sub(MAX_PAST_JOBS)) {
            jobs.remove(job);
        }
        let turn = jobs.values().map(|commit| commit.turn).max().unwrap_or(0) + 1;
        let mut started = Vec::new();
        for wanted in commits {
            let commit = jobs.entry(wanted.job).or_default();
            if commit.wanted.as_ref() == Some(wanted) {
                continue;
            }
            commit.wanted = Some(wanted.clone());
            commit.turn = turn;
            if !commit.is_running {
                commit.is_running = true;
                started.push(wanted.job);
            }
        }
        started
    }

    /// Returns the next commit of a job that runs. The job does not run any more if there is none.
    pub(super) fn next(&self, job: JobId) -> Option<GroupCommit> {
        let mut jobs = self.lock();
        let commit = jobs.get_mut(&job)?;
        commit.is_running = commit.wanted.is_some();
        commit.wanted.clone()
    }

    /// Records the outcome of a commit. Returns whether a newer one must run.
    pub(super) fn finish(&self, written: &GroupCommit, outcome: Result<(), String>) -> bool {
        let job = written.job;
        metrics::count_group_commit(outcome.is_ok());
        let mut jobs = self.lock();
        let Some(commit) = jobs.get_mut(&job) else { return false };
        if let Err(error) = &outcome
            && !commit.has_failed
        {
            tracing::warn!(%job, error, "cannot commit delivered offsets to the consumer group; the job continues");
        }
        commit.has_failed = outcome.is_err();
        commit.is_running = commit.wanted.as_ref().is_some_and(|wanted| wanted != written);
        commit.is_running
    }

    /// Whether the plan contains a commit.
    pub(super) fn is_wanted(&self, commit: &GroupCommit) -> bool {
        self.lock().get(&commit.job).is_some_and(|known| known.wanted.as_ref() == Some(commit))
    }

    /// Raises the offsets of a commit to the largest ones of the job so far, and remembers them. The positions of a new leader may
    /// be older than those of the previous one.
    pub(super) fn raise(&self, job: JobId, offsets: &mut [PartitionOffset]) {
        let mut jobs = self.lock();
        let Some(commit) = jobs.get_mut(&job) else { return };
        for PartitionOffset { topic, partition, offset } in offsets {
            let largest = commit.largest.entry(topic.clone()).or_default().entry(*partition).or_default();
            *largest = (*largest).max(*offset);
            *offset = *largest;
        }
    }

    pub(super) fn source(&self, job: JobId) -> Option<Arc<CommitSource>> {
        self.lock().get(&job).and_then(|commit| commit.source.clone())
    }

    /// Sets what the commits of a job need.
    pub(super) fn set_source(&self, job: JobId, source: &Arc<CommitSource>) {
        if let Some(commit) = self.lock().get_mut(&job) {
            commit.source.get_or_insert_with(|| Arc::clone(source));
        }
    }
}

#[cfg(test)]
mod tests;
