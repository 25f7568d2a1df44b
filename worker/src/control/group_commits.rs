//! Commits the delivered offsets of jobs to consumer groups, as the plan requests. A commit that fails is counted and logged once, and
//! the next plan replaces it.

use std::sync::Arc;
use std::time::Duration;

use feedline_common::backoff::spread;
use feedline_data::committed_offsets::committed_offsets;
use feedline_data::ids::JobId;
use feedline_data::messages::GroupCommit;
use feedline_sources::Dataset;
use tokio::task::spawn_blocking;

use super::ControlLoop;
use super::offset_committer::CommitSource;

/// Number of attempts of a commit. The group's coordinator may move or load its state.
const MAX_ATTEMPTS: u32 = 3;
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl ControlLoop {
    /// Starts the commits of a plan. Called before the engine unloads the jobs that have ended.
    pub(super) fn apply_commits(self: &Arc<Self>, commits: &[GroupCommit]) {
        for job in self.group_commits.replace(commits) {
            let loaded = self.engine.job(job).filter(|_| self.group_commits.source(job).is_none());
            if let Some(loaded) = loaded {
                let details = &loaded.compiled.details;
                let source = Dataset::of_tenant(
                    details.pipeline.source.clone(),
                    Arc::clone(&self.stores),
                    &details.reads,
                );
                let source = source.ok().map(|dataset| CommitSource {
                    pipeline: details.pipeline.clone(),
                    layout: details.layout.clone(),
                    manifest: Arc::clone(&loaded.compiled.manifest),
                    dataset,
                });
                if let Some(source) = source {
                    self.group_commits.set_source(job, &Arc::new(source));
                }
            }
            let this = Arc::clone(self);
            // The worker stops after the task has ended, so that the last commit of a job is written.
            self.tracker.spawn(async move { this.run_commits(job).await });
        }
    }

    async fn run_commits(&self, job: JobId) {
        while let Some(wanted) = self.group_commits.next(job) {
            let outcome = self.commit_with_retries(&wanted).await;
            if !self.group_commits.finish(&wanted, outcome) {
                return;
            }
        }
    }

    async fn commit_with_retries(&self, wanted: &GroupCommit) -> Result<(), String> {
        let mut attempt = 1;
        loop {
            let outcome = self.commit(wanted).await;
            let is_last = attempt == MAX_ATTEMPTS || self.stop.is_cancelled();
            if outcome.is_ok() || is_last || !self.group_commits.is_wanted(wanted) {
                return outcome;
            }
            attempt += 1;
            self.pause(spread(RETRY_PAUSE)).await;
        }
    }

    async fn commit(&self, wanted: &GroupCommit) -> Result<(), String> {
        let source = match self.group_commits.source(wanted.job) {
            Some(source) => source,
            None => self.load_commit_source(wanted.job).await?,
        };
        let mut offsets = if wanted.offsets.is_empty() {
            let (own, delivered) = (Arc::clone(&source), wanted.delivered);
            let compute = move || committed_offsets(&own.pipeline, &own.layout, &own.manifest, delivered);
            spawn_blocking(compute).await.map_err(|error| error.to_string())?
        } else {
            wanted.offsets.clone()
        };
        self.group_commits.raise(wanted.job, &mut offsets);
        source.dataset.commit_offsets(&offsets).await.map_err(|error| error.to_string())
    }

    /// Loads what a commit needs of a job that this worker has not loaded.
    async fn load_commit_source(&self, job: JobId) -> Result<Arc<CommitSource>, String> {
        let details = self.coordinator.job_details(job).await.map_err(|error| error.message)?;
        let manifest = self.manifest(job, &details.source_key, details.dataset.index_reference()).await;
        let manifest = manifest.map_err(|error| error.message)?;
        let dataset =
            Dataset::of_tenant(details.pipeline.source.clone(), Arc::clone(&self.stores), &details.reads)
                .map_err(|error| error.to_string())?;
        let source = CommitSource { pipeline: details.pipeline, layout: details.layout, manifest, dataset };
        let source = Arc::new(source);
        self.group_commits.set_source(job, &source);
        Ok(source)
    }
}
