//! A coordinator as a worker of this process sees it, watched: whether it has answered lately.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError, WorkerPlan,
    WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;
use feedline_proto::CoordinatorService;

/// A coordinator answers every half second; after this long it is gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// Answers of a coordinator to one worker.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorContact {
    answers: Mutex<(u64, Option<Instant>)>,
    /// What it said last instead of an answer.
    refusal: Mutex<String>,
}

impl CoordinatorContact {
    /// Reports that were answered so far.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the coordinator has answered lately.
    pub(crate) fn is_held(&self) -> bool {
        let last = self.answers.lock().unwrap_or_else(PoisonError::into_inner).1;
        last.is_some_and(|last| last.elapsed() < PATIENCE)
    }

    /// Why it has not answered: what was said last instead.
    pub(crate) fn reason(&self) -> String {
        let said = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if said.is_empty() { "it is silent".to_owned() } else { said }
    }

    fn note(&self, refusal: &ServiceError) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal.to_string();
    }

    fn count(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers = (answers.0 + 1, Some(Instant::now()));
    }
}

/// The coordinator, counting its answers to worker reports.
pub(crate) struct CountingCoordinator {
    /// The coordinator.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    /// Where they are counted.
    pub(crate) contact: Arc<CoordinatorContact>,
}

#[async_trait]
impl CoordinatorService for CountingCoordinator {
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        self.coordinator.open_job(spec).await
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError> {
        self.coordinator.cancel_job(job).await
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        self.coordinator.set_weights(job, weights).await
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        self.coordinator.job_details(job).await
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        self.coordinator.job_status(job).await
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError> {
        self.coordinator.list_jobs().await
    }

    async fn cluster(&self) -> Result<ClusterView, ServiceError> {
        self.coordinator.cluster().await
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        self.coordinator.manifest(job).await
    }

    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        let plan = self.coordinator.sync_worker(report).await;
        match &plan {
            Ok(_) => self.contact.count(),
            Err(refusal) => self.contact.note(refusal),
        }
        plan
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        self.coordinator.sync_consumer(report).await
    }

    async fn places(&self, job: JobId, step: StepId) -> Result<GroupPositions, ServiceError> {
        self.coordinator.places(job, step).await
    }
}
