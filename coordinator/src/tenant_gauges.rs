//! Metrics of each tenant: running jobs and planned cores.

use std::collections::{BTreeMap, BTreeSet};

use feedline_common::metric_table::ABSENT;
use feedline_data::ids::JobId;
use feedline_data::messages::samples::JobProperties;
use feedline_planner::plan::Plan;
use metrics::gauge;

use crate::metrics::{TENANT_CORES, TENANT_JOBS};

/// Tenants with published metrics. The metrics of tenants without jobs are 0 until another coordinator leads.
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
        for known in &self.0 {
            now.entry(known).or_default();
        }
        for (tenant, (count, cores)) in &now {
            gauge!(TENANT_JOBS, "tenant" => (*tenant).to_owned()).set(f64::from(*count));
            gauge!(TENANT_CORES, "tenant" => (*tenant).to_owned()).set(*cores);
        }
        let published = now.into_keys().map(str::to_owned).collect();
        self.0 = published;
    }

    /// Removes the metrics of all tenants, because another coordinator leads and publishes them.
    pub(crate) fn retire(&mut self) {
        for tenant in std::mem::take(&mut self.0) {
            gauge!(TENANT_JOBS, "tenant" => tenant.clone()).set(ABSENT);
            gauge!(TENANT_CORES, "tenant" => tenant).set(ABSENT);
        }
    }
}
