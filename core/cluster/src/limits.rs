//! How much there may be: who comes beyond it is refused with a time to come back, so that those who are there go on as before.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ConsumerReport, JobSpec, ServiceError, ServiceErrorKind};
use feedline_data::tenants::describe_tenant;
use serde::{Deserialize, Serialize};

use super::Cluster;

/// Jobs take a while: who waits for one to end asks again after so long.
const JOB_RETRY_MS: u64 = 5_000;
/// The same for places of consumers and workers.
const PLACE_RETRY_MS: u64 = 2_000;

/// Longest text that a report says in its own words, in bytes: it is kept in the log, and told to all.
const MOST_TEXT_BYTES: usize = 2_048;

/// As much of a text as is kept.
pub(super) fn kept_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MOST_TEXT_BYTES));
    text
}

/// How much there may be at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterLimits {
    /// Jobs that are prepared or run.
    pub jobs: u32,
    /// Consumers of these that report.
    pub consumers: u32,
    /// Workers that report.
    pub workers: u32,
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self { jobs: 5_000, consumers: 50_000, workers: 10_000 }
    }
}

impl ClusterLimits {
    /// As many as come.
    pub const NONE: Self = Self { jobs: u32::MAX, consumers: u32::MAX, workers: u32::MAX };
}

impl Cluster {
    /// Whether the job's tenant may read what its pipeline does.
    pub(super) fn check_reads(&self, spec: &JobSpec) -> Result<(), ServiceError> {
        let reads = self.settings.tenants.reads_of(&spec.tenant);
        reads
            .check(&spec.tenant, &spec.pipeline)
            .map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))
    }

    /// Whether there is room for one more job: of all, and of its tenant.
    pub(super) fn check_job_room(&self, spec: &JobSpec) -> Result<(), ServiceError> {
        let present = || self.jobs.values().filter(|job| !job.is_ended());
        let most = self.settings.limits.jobs;
        if present().count() >= most as usize {
            return Err(ServiceError::busy(
                format!(
                    "the cluster may have {most} jobs at once, and as many run; wait until one has ended, or have the coordinator's --max-jobs raised"
                ),
                JOB_RETRY_MS,
            ));
        }
        let Some(most) = self.settings.tenants.quota_of(&spec.tenant).jobs else { return Ok(()) };
        if present().filter(|job| job.spec.tenant == spec.tenant).count() < most as usize {
            return Ok(());
        }
        let whose = describe_tenant(&spec.tenant);
        Err(ServiceError::busy(
            format!(
                "{whose} may have {most} jobs at once, and as many run; wait until one has ended, end one with `feedline job cancel ID`, or have the quota raised"
            ),
            JOB_RETRY_MS,
        ))
    }

    /// Whether there is a place for a consumer that has none, once those that have left are forgotten.
    pub(super) fn check_consumer_room(&self, report: &ConsumerReport) -> Result<(), ServiceError> {
        let (now, lease) = (self.now, self.settings.consumer_lease_ms);
        let is_there = |seen: &u64| now.saturating_sub(*seen) <= lease;
        let own = self.jobs.get(&report.job).and_then(|job| job.consumers.get(&report.consumer));
        if own.is_some_and(|seat| is_there(&seat.last_seen)) {
            return Ok(());
        }
        let most = self.settings.limits.consumers;
        if self.seats.count() < most as usize {
            return Ok(());
        }
        Err(ServiceError::busy(
            format!(
                "the cluster may have {most} consumers at once, and as many are there; wait until some have left, or have the coordinator's --max-consumers raised"
            ),
            PLACE_RETRY_MS,
        ))
    }

    /// Whether there is a place for a worker that has none.
    pub(super) fn check_worker_room(&self, worker: WorkerId) -> Result<(), ServiceError> {
        let most = self.settings.limits.workers;
        if self.workers.contains_key(&worker) || self.workers.len() < most as usize {
            return Ok(());
        }
        Err(ServiceError::busy(
            format!(
                "the cluster may have {most} workers at once, and as many are there; stop some, or raise the coordinator's --max-workers"
            ),
            PLACE_RETRY_MS,
        ))
    }
}
