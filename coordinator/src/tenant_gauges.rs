//! Metrics of each tenant: running jobs and planned cores.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::JobId;
use feedline_data::messages::samples::JobProperties;
use feedline_planner::plan::Plan;
use metrics::gauge;

use crate::metrics::{TENANT_CORES, TENANT_JOBS};

/// Tenants with published metrics. The metrics of tenants without jobs are set to 0.
#[derive(Debug, Default)]
pub(crate) struct TenantGauges(BTreeSet<String>);

impl TenantGauges {
    /// Publishes the numbers of running jobs and their planned cores.
    pub(crate) fn publish<'a>(&mut self, jobs: impl Iterator<Item = &'a JobProperties>, plan: Option<&Plan>) {
        let planned: BTreeMap<JobId, f64> =
            plan.iter().flat_map(|plan| &plan.jobs).map(|job| (job.job, job.cores())).collect();
        let mut now: BTreeMap<&str, (u32, f64)> = BTreeMap::new();
        for job in jobs {
            let (count, cores) = now.entry(&job.tenant).or_default();
            (*count, *cores) = (*count + 1, *cores + planned.get(&job.job).copied().unwrap_or(0.0));
        }
        for gone in self.0.iter().filter(|tenant| !now.contains_key(tenant.as_str())) {
            gauge!(TENANT_JOBS, "tenant" => gone.clone()).set(0.0);
            gauge!(TENANT_CORES, "tenant" => gone.clone()).set(0.0);
        }
        for (tenant, (count, cores)) in &now {
            gauge!(TENANT_JOBS, "tenant" => (*tenant).to_owned()).set(f64::from(*count));
            gauge!(TENANT_CORES, "tenant" => (*tenant).to_owned()).set(*cores);
        }
        self.0 = now.into_keys().map(str::to_owned).collect();
    }
}
