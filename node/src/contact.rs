//! A coordinator as a worker of this process sees it, watched: whether it has answered lately.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_core::cluster::messages::{
    ConsumerPlan, ConsumerReport, GroupPlaces, JobDetails, JobSpec, JobStatus, Refusal, WorkerPlan,
    WorkerReport,
};
use feedline_core::ids::JobId;
use feedline_core::manifest::Manifest;
use feedline_core::marks::Step;
use feedline_core::mix::MixChange;
use feedline_core::view::ClusterView;
use feedline_proto::CoordinatorService;

/// A coordinator answers every half second; after this long it is gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// Answers of a coordinator to one worker.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    answers: Mutex<(u64, Option<Instant>)>,
    /// What it said last instead of an answer.
    refusal: Mutex<String>,
}

impl Contact {
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

    fn note(&self, refusal: &Refusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal.to_string();
    }

    fn count(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers = (answers.0 + 1, Some(Instant::now()));
    }
}

/// The coordinator, counting its answers to worker reports.
pub(crate) struct Watched {
    /// The coordinator.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    /// Where they are counted.
    pub(crate) contact: Arc<Contact>,
}

#[async_trait]
impl CoordinatorService for Watched {
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, Refusal> {
        self.coordinator.open_job(spec).await
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), Refusal> {
        self.coordinator.cancel_job(job).await
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, Refusal> {
        self.coordinator.set_weights(job, weights).await
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, Refusal> {
        self.coordinator.job_details(job).await
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, Refusal> {
        self.coordinator.job_status(job).await
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, Refusal> {
        self.coordinator.list_jobs().await
    }

    async fn cluster(&self) -> Result<ClusterView, Refusal> {
        self.coordinator.cluster().await
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, Refusal> {
        self.coordinator.manifest(job).await
    }

    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, Refusal> {
        let plan = self.coordinator.sync_worker(report).await;
        match &plan {
            Ok(_) => self.contact.count(),
            Err(refusal) => self.contact.note(refusal),
        }
        plan
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, Refusal> {
        self.coordinator.sync_consumer(report).await
    }

    async fn places(&self, job: JobId, step: Step) -> Result<GroupPlaces, Refusal> {
        self.coordinator.places(job, step).await
    }
}
