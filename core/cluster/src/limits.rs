//! Limits on jobs, consumers and workers. Requests beyond a limit are rejected with a retry delay, so that existing jobs
//! continue.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ConsumerReport, JobSpec, ServiceError, ServiceErrorKind};
use feedline_data::tenants::describe_tenant;

use crate::Cluster;

/// Retry delay in milliseconds when there are too many jobs.
const JOB_RETRY_DELAY_MS: u64 = 5_000;
/// Retry delay in milliseconds when there are too many consumers or workers.
const CLIENT_RETRY_DELAY_MS: u64 = 2_000;

impl Cluster {
    /// Checks that the job's tenant may read the sources of its pipeline.
    pub(crate) fn check_reads(&self, spec: &JobSpec) -> Result<(), ServiceError> {
        let reads = self.settings.tenants.reads_of(&spec.tenant);
        reads
            .check(&spec.tenant, &spec.pipeline)
            .map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))
    }

    /// Checks the job limits of the cluster and of the tenant.
    pub(crate) fn check_job_limits(&self, spec: &JobSpec) -> Result<(), ServiceError> {
        let limit = self.settings.limits.jobs;
        if self.open_jobs.len() >= limit as usize {
            return Err(ServiceError::busy(
                format!(
                    "the cluster has reached its limit of {limit} jobs; retry after a job has ended, or raise the coordinator's --max-jobs"
                ),
                JOB_RETRY_DELAY_MS,
            ));
        }
        let Some(limit) = self.settings.tenants.quota_of(&spec.tenant).jobs else { return Ok(()) };
        let of_tenant = self.open_jobs.range((spec.tenant.clone(), String::new())..);
        let of_tenant = of_tenant.take_while(|((tenant, _), _)| *tenant == spec.tenant);
        if of_tenant.take(limit as usize).count() < limit as usize {
            return Ok(());
        }
        let tenant = describe_tenant(&spec.tenant);
        Err(ServiceError::busy(
            format!(
                "quota exceeded: {tenant} may have at most {limit} jobs; retry after a job has ended, cancel a job with `feedline job cancel ID`, or raise the quota"
            ),
            JOB_RETRY_DELAY_MS,
        ))
    }

    /// Checks the limit on consumers, unless the consumer has reported within its lease time.
    pub(crate) fn check_consumer_limit(&mut self, report: &ConsumerReport) -> Result<(), ServiceError> {
        let (now, lease_ms) = (self.now, self.settings.consumer_lease_ms);
        if let Some(silent_before) = now.checked_sub(lease_ms + 1) {
            while self.consumer_reports.pop_due(silent_before).is_some() {}
        }
        let own = self.jobs.get(&report.job).and_then(|job| job.consumers.get(&report.consumer));
        if own.is_some_and(|consumer| !consumer.is_silent(now, lease_ms)) {
            return Ok(());
        }
        let limit = self.settings.limits.consumers;
        if self.consumer_reports.len() < limit as usize {
            return Ok(());
        }
        Err(ServiceError::busy(
            format!(
                "the cluster has reached its limit of {limit} consumers; retry after some consumers have left, or raise the coordinator's --max-consumers"
            ),
            CLIENT_RETRY_DELAY_MS,
        ))
    }

    /// Checks the limit on workers, unless the worker is already known.
    pub(crate) fn check_worker_limit(&self, worker: WorkerId) -> Result<(), ServiceError> {
        let limit = self.settings.limits.workers;
        if self.workers.contains_key(&worker) || self.workers.len() < limit as usize {
            return Ok(());
        }
        Err(ServiceError::busy(
            format!(
                "the cluster has reached its limit of {limit} workers; stop some workers, or raise the coordinator's --max-workers"
            ),
            CLIENT_RETRY_DELAY_MS,
        ))
    }
}
