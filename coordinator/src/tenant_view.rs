//! The coordinator service restricted to the jobs of one tenant.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use feedline_data::ids::JobId;
use feedline_data::messages::{JobSpec, JobStatus, ServiceError, ServiceErrorKind};
use feedline_proto::rpc::{Tenancy, TenantRequest};
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

#[cfg(test)]
pub(crate) mod tests;

/// Maximum number of cached jobs of the tenant. Other jobs are looked up again.
const MAX_CACHED_JOBS: usize = 4096;

/// The coordinator service for the callers of one tenant. The authenticator keeps one view per tenant.
///
/// A request for a job of another tenant receives the same reply as a request for an unknown job, after the same lookup.
/// Therefore, consecutive job ids reveal nothing about other tenants.
pub struct TenantView {
    inner: Arc<dyn CoordinatorService>,
    tenant: String,
    /// Known jobs of the tenant. The tenant of a job never changes, and ids are unique.
    known_jobs: Mutex<BTreeSet<JobId>>,
}

impl TenantView {
    /// Creates a view for `tenant`. An empty name selects jobs without a tenant.
    pub fn new(inner: Arc<dyn CoordinatorService>, tenant: impl Into<String>) -> Self {
        Self { inner, tenant: tenant.into(), known_jobs: Mutex::default() }
    }

    /// Returns the name of the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Checks that a job belongs to the tenant. Only such jobs are cached: other jobs are looked up each time, like unknown
    /// jobs.
    async fn check(&self, job: JobId) -> Result<(), ServiceError> {
        if self.known_jobs().contains(&job) {
            return Ok(());
        }
        self.status(job).await.map(|_| ())
    }

    async fn status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        let status = self.inner.job_status(job).await?;
        if status.tenant != self.tenant {
            return Err(ServiceError::unknown_job(job));
        }
        self.cache(job);
        Ok(status)
    }

    fn cache(&self, job: JobId) {
        let mut known_jobs = self.known_jobs();
        if known_jobs.len() >= MAX_CACHED_JOBS {
            known_jobs.pop_first();
        }
        known_jobs.insert(job);
    }

    fn known_jobs(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.known_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CoordinatorService for TenantView {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request.tenancy() {
            Tenancy::OfJob(job) => {
                self.check(job).await?;
                self.inner.call(request).await
            }
            Tenancy::Shared => self.inner.call(request).await,
            Tenancy::Restricted(restricted) => self.call_restricted(restricted).await,
            Tenancy::Cluster => Err(requires_cluster_access(&request)),
        }
    }
}

impl TenantView {
    /// Restricts a request to the jobs of the tenant.
    async fn call_restricted(&self, request: TenantRequest<'_>) -> Result<CoordinatorReply, ServiceError> {
        use CoordinatorReply as Reply;
        Ok(match request {
            TenantRequest::OpenJob(spec) => {
                let job = self.inner.open_job(self.with_tenant(spec)).await?;
                self.cache(job);
                Reply::OpenJob(job)
            }
            TenantRequest::JoinJob(spec) => {
                let job = self.inner.join_job(self.with_tenant(spec)).await?;
                self.cache(job);
                Reply::JoinJob(job)
            }
            TenantRequest::GetJobStatus(job) => {
                Reply::GetJobStatus(self.status(job).await?.without_process_totals())
            }
            TenantRequest::ListJobs => {
                let own = self.inner.list_jobs().await?.into_iter().filter(|job| job.tenant == self.tenant);
                Reply::ListJobs(own.map(JobStatus::without_process_totals).collect())
            }
            TenantRequest::GetCluster => {
                Reply::GetCluster(self.inner.cluster().await?.for_tenant(&self.tenant))
            }
        })
    }

    fn with_tenant(&self, spec: &JobSpec) -> JobSpec {
        JobSpec { tenant: self.tenant.clone(), ..spec.clone() }
    }
}

/// Returns the error for a request that concerns the whole cluster.
fn requires_cluster_access(request: &CoordinatorRequest) -> ServiceError {
    let message = match request {
        CoordinatorRequest::SyncWorker { .. } => {
            "workers cannot use a tenant's token; start workers with a worker token"
        }
        _ => "tenants cannot administer the cluster; use a token without a tenant",
    };
    ServiceError::new(ServiceErrorKind::Invalid, message)
}
