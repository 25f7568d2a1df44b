//! Flags on who may take how much.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feedline_cluster::ClusterLimits;
use feedline_coordinator::CoordinatorSettings;
use feedline_worker::MOST_FETCHES;

use crate::failure::Failure;
use crate::tenants_file;

/// Quotas of tenants.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TenantArgs {
    /// YAML file of what the jobs of each tenant may take together: jobs, cores, cache_bytes, priority; and of
    /// what they may read: urls, credentials; docs/tenants.md
    /// describes it [default: no limits].
    #[arg(long, value_name = "FILE")]
    pub(crate) tenants: Option<PathBuf>,
}

/// How much a coordinator takes on before it refuses.
#[derive(Args, Debug, Clone)]
pub(crate) struct LimitArgs {
    /// Jobs that may be prepared or run at once; one more is refused, and its client waits for room.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().jobs, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_jobs: u32,
    /// Consumers that may be there at once.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().consumers, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_consumers: u32,
    /// Workers that may be there at once.
    #[arg(long, value_name = "N", default_value_t = ClusterLimits::default().workers, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_workers: u32,
}

/// The end of a coordinator.
#[derive(Args, Debug, Clone)]
pub(crate) struct GraceArgs {
    /// Time to keep and answer what has arrived, and to have another coordinator lead, after SIGTERM or SIGINT.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
}

/// How much a worker takes on before it refuses.
#[derive(Args, Debug, Clone)]
pub(crate) struct RoomArgs {
    /// Fetches that may be open at once, a quarter of them of one client; one more is refused, and its client asks again.
    #[arg(long, value_name = "N", default_value_t = MOST_FETCHES, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_fetches: u32,
}

impl TenantArgs {
    /// Puts the quotas, and how much there may be, into a coordinator's settings.
    pub(crate) fn set(&self, limits: &LimitArgs, settings: &mut CoordinatorSettings) -> Result<(), Failure> {
        if let Some(file) = &self.tenants {
            settings.cluster.tenants = tenants_file::load(file)?;
        }
        let LimitArgs { max_jobs, max_consumers, max_workers } = limits;
        settings.cluster.limits =
            ClusterLimits { jobs: *max_jobs, consumers: *max_consumers, workers: *max_workers };
        Ok(())
    }
}
