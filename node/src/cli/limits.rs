//! Flags for quotas, limits and grace periods of coordinators and workers.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feedline_cluster::ClusterLimits;
use feedline_coordinator::CoordinatorSettings;
use feedline_data::messages::MAX_LOST_WORKERS;
use feedline_worker::DEFAULT_MAX_FETCHES;

use crate::failure::Failure;
use crate::tenants_file;

/// Quotas of tenants.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TenantArgs {
    /// YAML file with the quotas (jobs, cores, cache_bytes, priority) and read permissions (urls, credentials) of each
    /// tenant; see docs/tenants.md [default: no quotas].
    #[arg(long, value_name = "FILE")]
    pub(crate) tenants: Option<PathBuf>,
}

/// Limits of a coordinator. It rejects requests that exceed them.
#[derive(Args, Debug, Clone)]
pub(crate) struct ClusterLimitArgs {
    /// Maximum number of preparing and running jobs; the coordinator rejects further jobs, and their clients retry.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().jobs, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_jobs: u32,
    /// Maximum number of connected consumers.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().consumers, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_consumers: u32,
    /// Maximum number of connected workers.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().workers, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_workers: u32,
    /// Number of lost workers after which the rows or the file that they processed are given up. Use a larger number if many
    /// workers are lost for other reasons, for example on preemptible machines.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().lost_workers, value_parser = clap::value_parser!(u32).range(i64::from(MAX_LOST_WORKERS)..))]
    pub(crate) max_lost_workers: u32,
}

/// How a coordinator shuts down.
#[derive(Args, Debug, Clone)]
pub(crate) struct CoordinatorGraceArgs {
    /// Time after SIGTERM or SIGINT to answer pending requests and to transfer leadership.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
}

/// Limits of a worker. It rejects fetches that exceed them.
#[derive(Args, Debug, Clone)]
pub(crate) struct FetchLimitArgs {
    /// Maximum number of open fetches; one client may open a quarter of them. The worker rejects further fetches, and
    /// their clients retry.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_FETCHES, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_fetches: u32,
}

impl TenantArgs {
    /// Sets the quotas and limits in a coordinator's settings.
    pub(crate) fn apply(
        &self,
        limits: &ClusterLimitArgs,
        settings: &mut CoordinatorSettings,
    ) -> Result<(), Failure> {
        if let Some(file) = &self.tenants {
            settings.cluster.tenants = tenants_file::load(file)?;
        }
        let ClusterLimitArgs { max_jobs, max_consumers, max_workers, max_lost_workers } = limits;
        settings.cluster.limits = ClusterLimits {
            jobs: *max_jobs,
            consumers: *max_consumers,
            workers: *max_workers,
            lost_workers: *max_lost_workers,
        };
        Ok(())
    }
}
