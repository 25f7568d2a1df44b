//! A job as a Python object.

use std::sync::Arc;
use std::time::Duration;

use feedline_client::Job as ClientJob;
use feedline_client::origin::Origins;
use feedline_data::checkpoint::StepId;
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{JobState, JobStatus};
use feedline_data::pipeline::{OperatorKind, PadTo, Pipeline};
use feedline_node::JobService;
use feedline_proto::CoordinatorService;
use pyo3::prelude::*;

use crate::batch::SlotPositionTuple;
use crate::consumer::Consumer;
use crate::errors::{FeedlineError, WrongUse, from_client};
use crate::origins::SharedOrigins;
use crate::runtime;

/// Interval at which to check whether the dataset is indexed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A job that this process opened or joined.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Job {
    job: ClientJob,
    coordinator: Arc<dyn CoordinatorService>,
    pipeline: Pipeline,
    origins: SharedOrigins,
    process: u32,
}

impl Job {
    pub(crate) fn new(job: ClientJob, coordinator: Arc<dyn CoordinatorService>, pipeline: Pipeline) -> Self {
        let origins = SharedOrigins::default();
        Self { job, coordinator, pipeline, origins, process: std::process::id() }
    }
}

fn to_json(status: &JobStatus) -> PyResult<String> {
    serde_json::to_string(status).map_err(|error| FeedlineError::new_err(error.to_string()))
}

fn timeout_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Returns the list columns that the last operator pads to one length per batch.
fn dense_columns(last: &OperatorKind) -> Vec<String> {
    match last {
        OperatorKind::BucketByLength(bucket) if bucket.pad != PadTo::None => bucket.columns.clone(),
        _ => Vec::new(),
    }
}

#[pymethods]
impl Job {
    /// Returns the job ID, as `feedline job list` prints it.
    #[getter]
    fn id(&self) -> String {
        self.job.id().to_string()
    }

    /// Returns the status of the job as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        runtime::check_process(self.process)?;
        let status = runtime::wait(py, self.job.status())?;
        to_json(&status.map_err(|error| from_client(&error))?)
    }

    /// Waits until the dataset is indexed or the job has ended. Returns the status as JSON, or `None` if it takes longer
    /// than `seconds`.
    fn wait_until_indexed(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        runtime::check_process(self.process)?;
        let poll = async {
            loop {
                let status = self.job.status().await?;
                if !matches!(status.state, JobState::Preparing { .. }) {
                    return Ok(status);
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        match runtime::wait(py, async { tokio::time::timeout(timeout_of(seconds), poll).await })? {
            Ok(status) => to_json(&status.map_err(|error| from_client(&error))?).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Creates consumer `index` and starts to fetch.
    fn consumer(&self, index: u32) -> PyResult<Consumer> {
        runtime::check_process(self.process)?;
        let handle = runtime::handle()?;
        let guard = handle.enter();
        let consumer = self.job.consumer(index, JobService::session_id());
        drop(guard);
        let dense = self.pipeline.operators.last().map(|last| dense_columns(&last.kind)).unwrap_or_default();
        let is_mixed = self.pipeline.source.mix.is_some();
        Ok(Consumer::new(consumer, is_mixed, self.origins.clone(), dense.into()))
    }

    /// Loads the list of shards, which [`crate::batch::Batch::rows`] requires. Only the first call sends a request.
    fn load_origins(&self, py: Python<'_>) -> PyResult<()> {
        runtime::check_process(self.process)?;
        if self.origins.lock().is_some() {
            return Ok(());
        }
        if self.pipeline.source.is_unbounded() {
            return Err(WrongUse::new_err(
                "the origins of the rows of a job with `until: none` cannot be computed; read the columns `partition` and `offset`",
            ));
        }
        let (job, coordinator) = (self.job.id(), Arc::clone(&self.coordinator));
        let loaded = runtime::wait(py, async move {
            let manifest = coordinator.manifest(job).await?;
            Ok((manifest, coordinator.job_details(job).await?.layout))
        })?;
        let (manifest, layout) = loaded.map_err(|error| from_client(&error))?;
        let origins = py.detach(|| Origins::new(layout, &manifest, &self.pipeline));
        *self.origins.lock() = Some(origins);
        Ok(())
    }

    /// Returns the first `limit` unreadable parts of the data, each from an offset to the end of a shard: `(shard, offset, reason)`.
    fn defects(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<(String, u64, String)>> {
        runtime::check_process(self.process)?;
        let (job, coordinator) = (self.job.id(), Arc::clone(&self.coordinator));
        let manifest = runtime::wait(py, async move { Ok(coordinator.manifest(job).await?) })?;
        let manifest = manifest.map_err(|error| from_client(&error))?;
        let defects = manifest.defects().take(limit);
        Ok(defects
            .map(|(shard, defect)| (shard.object.url.clone(), defect.offset, defect.reason.clone()))
            .collect())
    }

    /// Returns the positions of all ranks at a step, and the ranks that have not answered within `seconds`. The other arguments are the
    /// fields of [`StepId`].
    #[pyo3(signature = (epochs, rounds, rest, seconds))]
    fn positions_at(
        &self,
        py: Python<'_>,
        epochs: Option<u32>,
        rounds: u64,
        rest: u32,
        seconds: f64,
    ) -> PyResult<(Vec<SlotPositionTuple>, Vec<u32>)> {
        runtime::check_process(self.process)?;
        let request = self.job.positions_at(
            StepId { epochs, batches_per_stream: rounds, extra_batches: rest },
            timeout_of(seconds),
        );
        let group = runtime::wait(py, request)?.map_err(|error| from_client(&error))?;
        let position = |(slot, at): (u32, StreamPosition)| (slot, at.epoch, at.row);
        Ok((group.positions.into_iter().map(position).collect(), group.missing))
    }

    /// Returns the mix changes that affect rows from `epoch` on, as JSON. `None` if no coordinator answers within
    /// `seconds`.
    fn mix_from(&self, py: Python<'_>, epoch: u32, seconds: f64) -> PyResult<Option<String>> {
        runtime::check_process(self.process)?;
        let request = async { tokio::time::timeout(timeout_of(seconds), self.job.status()).await };
        let Ok(status) = runtime::wait(py, request)? else { return Ok(None) };
        let layout = status.map_err(|error| from_client(&error))?.layout;
        let mix = layout.map(|layout| serde_json::to_string(layout.mix_changes_from(epoch))).transpose();
        mix.map_err(|error| FeedlineError::new_err(error.to_string()))
    }

    /// Changes the weights of the mix. Returns the first row that the weights apply to, as the pass and the index in
    /// the pass.
    fn set_weights(&self, py: Python<'_>, weights: Vec<f64>) -> PyResult<(u32, u64)> {
        runtime::check_process(self.process)?;
        let request = self.job.set_weights(&weights);
        let change = runtime::wait(py, request)?.map_err(|error| from_client(&error))?;
        Ok((change.pass, change.offset))
    }

    /// Cancels the job for all ranks.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        if runtime::check_process(self.process).is_err() {
            return Ok(());
        }
        let cancelled = runtime::wait(py, self.job.cancel())?;
        cancelled.map_err(|error| from_client(&error))
    }
}
