//! A coordinator as one tenant sees it: its own jobs, as if there were no others.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;
use feedline_proto::CoordinatorService;

#[cfg(test)]
pub(crate) mod tests;

/// Jobs that are known to be the tenant's; one that was forgotten is looked up again.
const KNOWN_JOBS: usize = 4096;

/// A coordinator for callers who are this tenant: whoever lets them in makes one for each tenant and keeps it.
///
/// A job of another tenant is answered for by the very words of the coordinator for one that never was, after the same
/// look at it, so that ids, which are numbers in sequence, give nothing away.
pub struct TenantView {
    inner: Arc<dyn CoordinatorService>,
    tenant: String,
    /// Jobs that are its own. A job never changes its tenant, and no id is given twice.
    own: Mutex<BTreeSet<JobId>>,
}

impl TenantView {
    /// The coordinator as `tenant` sees it; the empty name is the tenant of jobs that have none.
    pub fn new(inner: Arc<dyn CoordinatorService>, tenant: impl Into<String>) -> Self {
        Self { inner, tenant: tenant.into(), own: Mutex::default() }
    }

    /// Whose view it is.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Passes for jobs of the tenant. Only these are remembered: for others the coordinator is asked each time, as it is for
    /// jobs that it does not know.
    async fn check(&self, job: JobId) -> Result<(), ServiceError> {
        if self.own().contains(&job) {
            return Ok(());
        }
        self.status(job).await.map(|_| ())
    }

    async fn status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        let status = self.inner.job_status(job).await?;
        if status.tenant != self.tenant {
            return Err(ServiceError::unknown_job(job));
        }
        self.remember(job);
        Ok(status)
    }

    fn remember(&self, job: JobId) {
        let mut own = self.own();
        if own.len() >= KNOWN_JOBS {
            own.pop_first();
        }
        own.insert(job);
    }

    fn own(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CoordinatorService for TenantView {
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let job = self.inner.open_job(JobSpec { tenant: self.tenant.clone(), ..spec }).await?;
        self.remember(job);
        Ok(job)
    }

    async fn join_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let job = self.inner.join_job(JobSpec { tenant: self.tenant.clone(), ..spec }).await?;
        self.remember(job);
        Ok(job)
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError> {
        self.check(job).await?;
        self.inner.cancel_job(job).await
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        self.check(job).await?;
        self.inner.set_weights(job, weights).await
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        self.check(job).await?;
        self.inner.job_details(job).await
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        self.status(job).await.map(JobStatus::without_processes)
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError> {
        let jobs = self.inner.list_jobs().await?.into_iter();
        Ok(jobs.filter(|job| job.tenant == self.tenant).map(JobStatus::without_processes).collect())
    }

    async fn cluster(&self) -> Result<ClusterView, ServiceError> {
        self.inner.cluster().await.map(|view| view.of_tenant(&self.tenant))
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        self.check(job).await?;
        self.inner.manifest(job).await
    }

    async fn sync_worker(&self, _: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        Err(ServiceError::new(
            ServiceErrorKind::Invalid,
            "a tenant opens and consumes jobs and cannot report as a worker; start workers with access of their own",
        ))
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        self.check(report.job).await?;
        self.inner.sync_consumer(report).await
    }

    async fn places(&self, job: JobId, step: StepId) -> Result<GroupPositions, ServiceError> {
        self.check(job).await?;
        self.inner.places(job, step).await
    }
}
