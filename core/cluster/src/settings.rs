//! Settings of the state machine: timeouts, scheduling depth, tenants' quotas and limits.

use feedline_data::messages::MAX_LOST_WORKERS;
use feedline_data::tenants::Tenants;
use serde::{Deserialize, Serialize};

/// Timeouts, scheduling depth, quotas and limits of the state machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// Milliseconds without a report after which a worker's leases expire.
    pub worker_lease_ms: u64,
    /// Milliseconds without a report after which a consumer of a relaxed job loses its splits, a rank of an elastic job
    /// loses its slots, and a job without consumers loses its leases.
    pub consumer_lease_ms: u64,
    /// Milliseconds without a report from any consumer after which a job fails.
    pub abandoned_ms: u64,
    /// Maximum time in milliseconds for which a long poll waits for a changed plan. This is the heartbeat interval.
    pub hold_ms: u64,
    /// Number of uncomputed splits of one job that a worker holds; more if its cores would otherwise be idle.
    pub leases_ahead: u32,
    /// Milliseconds after which an uncomputed split near the job's end is also leased to an idle worker.
    pub straggler_ms: u64,
    /// Whether workers cache rows of pipelines that have no `cache` operator.
    #[serde(default = "default_auto_cache")]
    pub auto_cache: bool,
    /// Quotas and read permissions of each tenant.
    pub tenants: Tenants,
    /// Limits of the cluster and of each job.
    pub limits: ClusterLimits,
}

fn default_auto_cache() -> bool {
    true
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            worker_lease_ms: 3_000,
            consumer_lease_ms: 15_000,
            abandoned_ms: 3_600_000,
            hold_ms: 500,
            leases_ahead: 3,
            straggler_ms: 1_000,
            auto_cache: default_auto_cache(),
            tenants: Tenants::default(),
            limits: ClusterLimits::default(),
        }
    }
}

/// Maximum numbers of concurrent jobs, consumers and workers, and of lost workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterLimits {
    /// Maximum number of preparing or running jobs.
    pub jobs: u32,
    /// Maximum number of live consumers of these jobs.
    pub consumers: u32,
    /// Maximum number of live workers.
    pub workers: u32,
    /// Number of lost workers after which a split, an indexing task or the graph of a job is given up; at least
    /// [`MAX_LOST_WORKERS`].
    pub lost_workers: u32,
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self { jobs: 5_000, consumers: 50_000, workers: 10_000, lost_workers: MAX_LOST_WORKERS }
    }
}

impl ClusterLimits {
    /// No limits of concurrent jobs, consumers and workers.
    pub const UNLIMITED: Self =
        Self { jobs: u32::MAX, consumers: u32::MAX, workers: u32::MAX, lost_workers: MAX_LOST_WORKERS };
}
