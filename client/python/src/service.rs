//! Whom jobs are run by, as Python holds it; and what is known of pipelines without one.

use std::sync::{Arc, Mutex, PoisonError};

use feedline_client::{ClientSettings, Job as ClientJob, WorkerDirectory};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::OPERATOR_NAMES;
use feedline_data::position::Position;
use feedline_node::JobService as NodeService;
use feedline_proto::CoordinatorService;
use pyo3::prelude::*;

use crate::errors::{WrongUse, of_client, of_failure};
use crate::job::Job;
use crate::runtime;

/// A cluster behind a URL, or all roles in this process.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Service {
    service: Mutex<Option<NodeService>>,
    process: u32,
}

/// In a forked child nothing may be touched: a thread of the parent may have held a lock.
impl Drop for Service {
    fn drop(&mut self) {
        if runtime::check_process(self.process).is_err() {
            let service = self.service.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(service.take());
        }
    }
}

impl Service {
    /// Its coordinator, and how its workers are found.
    fn service(&self) -> PyResult<(Arc<dyn CoordinatorService>, Arc<dyn WorkerDirectory>)> {
        runtime::check_process(self.process)?;
        let guard = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let service =
            guard.as_ref().ok_or_else(|| WrongUse::new_err("the service is closed; open another"))?;
        Ok((service.coordinator(), service.workers()))
    }
}

#[pymethods]
impl Service {
    /// Connects, or starts all roles, as these flags of `feedline run` say.
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>) -> PyResult<Self> {
        let service = runtime::wait(py, async move { NodeService::open(&flags).await })?;
        let service = service.map_err(|failure| of_failure(&failure))?;
        Ok(Self { service: Mutex::new(Some(service)), process: std::process::id() })
    }

    /// Opens the job, or joins the one with the same name and settings.
    #[pyo3(signature = (*, pipeline, file, name, epochs, consumers, virtual_consumers, start, audit, elastic, weight, buffer_bytes, patience_ms, gpu))]
    #[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of one private call")]
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
        buffer_bytes: Option<u64>,
        patience_ms: Option<u64>,
        gpu: Option<u32>,
    ) -> PyResult<Job> {
        let (coordinator, workers) = self.service()?;
        let pipeline = NodeService::pipeline(pipeline, file).map_err(|failure| of_failure(&failure))?;
        let start: Option<Position> = start
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| WrongUse::new_err(format!("the state is no position of a job: {error}")))?;
        let spec = JobSpec {
            name,
            epochs,
            consumers,
            virtual_consumers,
            start,
            audit,
            elastic,
            weight,
            ..JobSpec::new(pipeline.clone())
        };
        let usual = ClientSettings::default();
        let settings = ClientSettings {
            buffer_bytes: buffer_bytes.unwrap_or(usual.buffer_bytes),
            patience_ms: patience_ms.unwrap_or(usual.patience_ms),
            gpu,
            ..usual
        };
        let asked = Arc::clone(&coordinator);
        let job = runtime::wait(py, ClientJob::open(asked, workers, spec, settings))?;
        let job = job.map_err(|error| of_client(&error))?;
        Ok(Job::new(job, coordinator, pipeline))
    }

    /// Whether all roles are this process.
    #[getter]
    fn is_embedded(&self) -> bool {
        let guard = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().is_some_and(NodeService::is_embedded)
    }

    /// What bounds the job with this id at this moment, in a clause; `None` where that is not known yet.
    fn bottleneck(&self, py: Python<'_>, job: &str) -> PyResult<Option<String>> {
        let coordinator = self.service()?.0;
        let view = runtime::wait(py, async move { coordinator.cluster().await })?;
        let view = view.map_err(|refusal| of_client(&refusal.into()))?;
        let job = view.jobs.into_iter().find(|found| found.job.to_string() == job);
        Ok(job.and_then(|job| job.bottleneck).map(|bottleneck| bottleneck.to_string()))
    }

    /// Ends what runs in this process. A second call does nothing; nor does one in a forked child, where nothing runs.
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

/// Checks a pipeline in YAML and gives it as JSON, defaults filled in; `file` is what errors call it.
#[pyfunction]
pub(crate) fn check_pipeline(text: &str, file: &str) -> PyResult<String> {
    let pipeline = feedline_data::pipeline::Pipeline::from_yaml(text, file)
        .map_err(|error| WrongUse::new_err(error.to_string()))?;
    serde_json::to_string(&pipeline).map_err(|error| WrongUse::new_err(error.to_string()))
}

/// A pipeline that [`check_pipeline`] takes, as a pipeline file.
#[pyfunction]
pub(crate) fn to_yaml(text: &str, file: &str) -> PyResult<String> {
    let pipeline = feedline_data::pipeline::Pipeline::from_yaml(text, file)
        .map_err(|error| WrongUse::new_err(error.to_string()))?;
    Ok(pipeline.to_yaml())
}

/// The names of all operators.
#[pyfunction]
pub(crate) fn operators() -> Vec<&'static str> {
    OPERATOR_NAMES.to_vec()
}
