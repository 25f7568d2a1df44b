//! A job as Python holds it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feedline_client::Job as ClientJob;
use feedline_client::origin::Origins;
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{JobState, JobStatus};
use feedline_data::pipeline::{OperatorKind, PadTo, Pipeline};
use feedline_data::position_history::StepId;
use feedline_node::JobService;
use feedline_proto::CoordinatorService;
use pyo3::prelude::*;

use crate::consumer::Consumer;
use crate::errors::{FeedlineError, of_client};
use crate::runtime;

/// How often a job whose dataset is being indexed is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Where rows come from, found once it is asked for.
pub(crate) type SharedOrigins = Arc<Mutex<Option<Origins>>>;

/// A slot, and the epoch and row at which it stands.
type Place = (u32, u32, u64);

/// A job that was opened or joined.
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

    /// How it stands, as JSON.
    fn told(status: &JobStatus) -> PyResult<String> {
        serde_json::to_string(status).map_err(|error| FeedlineError::new_err(error.to_string()))
    }
}

/// Columns that an operator fills to one length in each batch.
fn dense_columns(last: &OperatorKind) -> Vec<String> {
    match last {
        OperatorKind::BucketByLength(bucket) if bucket.pad != PadTo::None => bucket.columns.clone(),
        _ => Vec::new(),
    }
}

#[pymethods]
impl Job {
    /// The job's id, as `feedline job list` shows it.
    #[getter]
    fn id(&self) -> String {
        self.job.id().to_string()
    }

    /// How the job stands, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        runtime::check_process(self.process)?;
        let status = runtime::wait(py, self.job.status())?;
        Self::told(&status.map_err(|error| of_client(&error))?)
    }

    /// How the job stands once its dataset is known, or it has ended; `None` while it is not after `seconds`.
    fn prepared(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        runtime::check_process(self.process)?;
        let look = async {
            loop {
                let status = self.job.status().await?;
                if !matches!(status.state, JobState::Preparing { .. }) {
                    return Ok(status);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        match runtime::wait(py, async { tokio::time::timeout(time, look).await })? {
            Ok(status) => Self::told(&status.map_err(|error| of_client(&error))?).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Takes the place of consumer `index` and begins to fetch.
    fn consumer(&self, index: u32) -> PyResult<Consumer> {
        runtime::check_process(self.process)?;
        let _inside = runtime::handle()?;
        let guard = _inside.enter();
        let consumer = self.job.consumer(index, JobService::session_id());
        drop(guard);
        let dense = self.pipeline.operators.last().map(|last| dense_columns(&last.kind)).unwrap_or_default();
        let is_mixed = self.pipeline.source.mix.is_some();
        Ok(Consumer::new(consumer, is_mixed, Arc::clone(&self.origins), dense.into()))
    }

    /// Gets what [`crate::batch::Batch::rows`] needs: the list of shards. Asked for once.
    fn learn_origins(&self, py: Python<'_>) -> PyResult<()> {
        runtime::check_process(self.process)?;
        if self.origins.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let (job, coordinator) = (self.job.id(), Arc::clone(&self.coordinator));
        let found = runtime::wait(py, async move {
            let manifest = coordinator.manifest(job).await?;
            Ok((manifest, coordinator.job_details(job).await?.layout))
        })?;
        let (manifest, layout) = found.map_err(|refusal| of_client(&refusal))?;
        let origins = py.detach(|| Origins::new(layout, &manifest, &self.pipeline));
        *self.origins.lock().unwrap_or_else(PoisonError::into_inner) = Some(origins);
        Ok(())
    }

    /// Where all ranks stand at a step, as `((slot, epoch, row), ...)`, and the ranks of which that was not known after `seconds`.
    /// The step is given as [`StepId`] has it.
    #[pyo3(signature = (epochs, rounds, rest, seconds))]
    fn places(
        &self,
        py: Python<'_>,
        epochs: Option<u32>,
        rounds: u64,
        rest: u32,
        seconds: f64,
    ) -> PyResult<(Vec<Place>, Vec<u32>)> {
        runtime::check_process(self.process)?;
        let wait = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let asked = self.job.places(StepId { epochs, rounds, rest }, wait);
        let told = runtime::wait(py, asked)?.map_err(|error| of_client(&error))?;
        let place = |(slot, at): (u32, StreamPosition)| (slot, at.epoch, at.row);
        Ok((told.positions.into_iter().map(place).collect(), told.missing))
    }

    /// How the weights of the mix have changed by now, whoever changed them, as far as it tells what comes from `epoch` on, as JSON;
    /// `None` where no coordinator says so within `seconds`.
    fn mix_from(&self, py: Python<'_>, epoch: u32, seconds: f64) -> PyResult<Option<String>> {
        runtime::check_process(self.process)?;
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let asked = async { tokio::time::timeout(time, self.job.status()).await };
        let Ok(status) = runtime::wait(py, asked)? else { return Ok(None) };
        let layout = status.map_err(|error| of_client(&error))?.layout;
        let told = layout.map(|layout| serde_json::to_string(layout.mix_from(epoch))).transpose();
        told.map_err(|error| FeedlineError::new_err(error.to_string()))
    }

    /// Gives the datasets of the mix other weights; the pass and the place in it from which they hold.
    fn set_weights(&self, py: Python<'_>, weights: Vec<f64>) -> PyResult<(u32, u64)> {
        runtime::check_process(self.process)?;
        let asked = self.job.set_weights(&weights);
        let change = runtime::wait(py, asked)?.map_err(|error| of_client(&error))?;
        Ok((change.pass, change.place))
    }

    /// Ends the job for everyone.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        if runtime::check_process(self.process).is_err() {
            return Ok(());
        }
        let cancelled = runtime::wait(py, self.job.cancel())?;
        cancelled.map_err(|error| of_client(&error))
    }
}
