//! A coordinator as one tenant sees it: its own jobs, as if there were no others.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use feedline_data::ids::JobId;
use feedline_data::messages::{JobSpec, JobStatus, ServiceError, ServiceErrorKind};
use feedline_proto::rpc::Tenancy;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

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
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request.tenancy() {
            Tenancy::OfJob(job) => {
                self.check(job).await?;
                self.inner.call(request).await
            }
            Tenancy::Shared => self.inner.call(request).await,
            Tenancy::Restricted => self.restricted(request).await,
            Tenancy::Cluster => Err(of_cluster(&request)),
        }
    }
}

impl TenantView {
    /// Answers what concerns the jobs of the tenant alone.
    async fn restricted(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        Ok(match request {
            Request::OpenJob { spec } => {
                let job = self.inner.open_job(self.owned(*spec)).await?;
                self.remember(job);
                Reply::OpenJob(job)
            }
            Request::JoinJob { spec } => {
                let job = self.inner.join_job(self.owned(*spec)).await?;
                self.remember(job);
                Reply::JoinJob(job)
            }
            Request::GetJobStatus { job } => {
                Reply::GetJobStatus(self.status(job).await?.without_process_totals())
            }
            Request::ListJobs {} => {
                let own = self.inner.list_jobs().await?.into_iter().filter(|job| job.tenant == self.tenant);
                Reply::ListJobs(own.map(JobStatus::without_process_totals).collect())
            }
            Request::GetCluster {} => Reply::GetCluster(self.inner.cluster().await?.of_tenant(&self.tenant)),
            // A row that says `Restricted` needs an arm here; without one a tenant gets nothing.
            other => return Err(of_cluster(&other)),
        })
    }

    fn owned(&self, spec: JobSpec) -> JobSpec {
        JobSpec { tenant: self.tenant.clone(), ..spec }
    }
}

/// The error for a request that is of the whole cluster.
fn of_cluster(request: &CoordinatorRequest) -> ServiceError {
    let message = match request {
        CoordinatorRequest::SyncWorker { .. } => {
            "a tenant opens and consumes jobs and cannot report as a worker; start workers with access of their own"
        }
        _ => {
            "a tenant opens and consumes jobs and cannot administer the cluster; use a token without a tenant"
        }
    };
    ServiceError::new(ServiceErrorKind::Invalid, message)
}
