//! A service that runs jobs, as a Python object, and functions that validate pipelines without a service.

use std::sync::{Arc, Mutex, PoisonError};

use feedline_client::{ClientSettings, Job as ClientJob, WorkerDirectory};
use feedline_data::checkpoint::Position;
use feedline_data::manifest::ShardChanges;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::OPERATOR_NAMES;
use feedline_node::{JobService, ServiceSettings};
use feedline_proto::CoordinatorService;
use pyo3::prelude::*;

use crate::errors::{WrongUse, from_client, from_failure};
use crate::job::Job;
use crate::runtime;

/// The service that runs jobs, which is a cluster or all roles in this process.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Service {
    service: Mutex<Option<JobService>>,
    process: u32,
}

/// In a forked child, leaks the service, because a thread of the parent may have held one of its locks during the fork.
impl Drop for Service {
    fn drop(&mut self) {
        if runtime::check_process(self.process).is_err() {
            let service = self.service.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(service.take());
        }
    }
}

impl Service {
    fn roles(&self) -> PyResult<(Arc<dyn CoordinatorService>, Arc<dyn WorkerDirectory>)> {
        runtime::check_process(self.process)?;
        let guard = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let service =
            guard.as_ref().ok_or_else(|| WrongUse::new_err("the service is closed; open the job again"))?;
        Ok((service.coordinator(), service.workers()))
    }
}

#[pymethods]
impl Service {
    /// Connects to a cluster, or starts all roles in this process. `settings` is a [`ServiceSettings`] as JSON.
    #[new]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let settings: ServiceSettings = serde_json::from_str(settings)
            .map_err(|error| WrongUse::new_err(format!("invalid service settings: {error}")))?;
        let service = runtime::wait(py, async move { JobService::open(&settings).await })?;
        let service = service.map_err(|failure| from_failure(&failure))?;
        Ok(Self { service: Mutex::new(Some(service)), process: std::process::id() })
    }

    /// Opens a job, or joins the job with the same name and settings.
    #[pyo3(signature = (*, pipeline, file, name, epochs, consumers, virtual_consumers, start, audit, elastic, weight, accept_reuploaded, accept_changed_pipeline, buffer_bytes, feature_cache, patience_ms, gpu))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one private call")]
    fn open_job(
        &self,
        py: Python<'_>,
        pipeline: &str,
        file: &str,
        name: String,
        epochs: u32,
        consumers: u32,
        virtual_consumers: u32,
        start: Option<&str>,
        audit: bool,
        elastic: bool,
        weight: f64,
        accept_reuploaded: bool,
        accept_changed_pipeline: bool,
        buffer_bytes: Option<u64>,
        feature_cache: Option<&str>,
        patience_ms: Option<u64>,
        gpu: Option<u32>,
    ) -> PyResult<Job> {
        let (coordinator, workers) = self.roles()?;
        let pipeline = JobService::pipeline(pipeline, file).map_err(|failure| from_failure(&failure))?;
        let start: Option<Position> = start
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| WrongUse::new_err(format!("invalid position in the state: {error}")))?;
        let spec = JobSpec {
            name,
            epochs,
            consumers,
            virtual_consumers,
            start,
            audit,
            elastic,
            weight,
            accept_reuploaded,
            accept_changed_pipeline,
            ..JobSpec::new(pipeline.clone())
        };
        let feature_cache = feature_cache.map(|text| JobService::size("feature_cache", text)).transpose();
        let feature_cache = feature_cache.map_err(|failure| from_failure(&failure))?;
        let defaults = ClientSettings::default();
        let settings = ClientSettings {
            buffer_bytes: buffer_bytes.unwrap_or(defaults.buffer_bytes),
            patience_ms: patience_ms.unwrap_or(defaults.patience_ms),
            gpu,
            feature_cache_bytes: feature_cache.unwrap_or(defaults.feature_cache_bytes),
            ..defaults
        };
        let opened = ClientJob::open(Arc::clone(&coordinator), workers, spec, settings);
        let job = runtime::wait(py, opened)?;
        let job = job.map_err(|error| from_client(&error))?;
        Ok(Job::new(job, coordinator, pipeline))
    }

    /// Whether all roles run in this process.
    #[getter]
    fn is_embedded(&self) -> bool {
        let guard = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().is_some_and(JobService::is_embedded)
    }

    /// Returns the current bottleneck of a job as text. `None` while it is unknown.
    fn bottleneck(&self, py: Python<'_>, job: &str) -> PyResult<Option<String>> {
        let (coordinator, _) = self.roles()?;
        let view = runtime::wait(py, async move { coordinator.cluster().await })?;
        let view = view.map_err(|error| from_client(&error.into()))?;
        let job = view.jobs.into_iter().find(|found| found.job.to_string() == job);
        Ok(job.and_then(|job| job.bottleneck).map(|bottleneck| bottleneck.to_string()))
    }

    /// Shuts down the roles in this process. Does nothing in a forked child or after the first call.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if runtime::check_process(self.process).is_err() {
            return Ok(());
        }
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        match service {
            Some(service) => runtime::wait(py, service.shutdown()),
            None => Ok(()),
        }
    }
}

/// Describes the shards that were indexed again, as a sentence.
#[pyfunction]
pub(crate) fn describe_changes(changes: &str, shards: u64) -> PyResult<String> {
    let changes: ShardChanges =
        serde_json::from_str(changes).map_err(|error| WrongUse::new_err(error.to_string()))?;
    Ok(changes.describe(shards))
}

/// Validates a pipeline in YAML. Returns the pipeline as JSON with all defaults. Error messages contain `file`.
#[pyfunction]
pub(crate) fn check_pipeline(text: &str, file: &str) -> PyResult<String> {
    let pipeline = feedline_data::pipeline::Pipeline::from_yaml(text, file)
        .map_err(|error| WrongUse::new_err(error.to_string()))?;
    serde_json::to_string(&pipeline).map_err(|error| WrongUse::new_err(error.to_string()))
}

/// Converts a pipeline in YAML or JSON to a pipeline file with all defaults. Error messages contain `file`.
#[pyfunction]
pub(crate) fn to_yaml(text: &str, file: &str) -> PyResult<String> {
    let pipeline = feedline_data::pipeline::Pipeline::from_yaml(text, file)
        .map_err(|error| WrongUse::new_err(error.to_string()))?;
    Ok(pipeline.to_yaml())
}

/// Returns the names of all operators.
#[pyfunction]
pub(crate) fn operators() -> Vec<&'static str> {
    OPERATOR_NAMES.to_vec()
}
