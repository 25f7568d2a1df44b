//! Metrics of each tenant: running jobs, planned cores, and how long consumers wait.

use std::collections::{BTreeMap, BTreeSet};

use feedline_common::metric_table::ABSENT;
use feedline_data::ids::JobId;
use feedline_data::messages::samples::JobProperties;
use feedline_data::view::JobView;
use feedline_planner::plan::Plan;
use metrics::gauge;

use crate::metrics::{TENANT_CORES, TENANT_JOBS, TENANT_STALL_FRACTION};

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

    /// Publishes the largest stall fraction of the jobs of each tenant. A tenant without a measured job has none. A
    /// consumer without step time waits by definition, and a job of such consumers only measures the cluster.
    pub(crate) fn publish_stalls(&self, jobs: &[JobView]) {
        let is_limited = |job: &&JobView| job.demand_rows_per_s.is_some() || job.rows_per_s == 0.0;
        let mut stalls: BTreeMap<&str, f64> = self.0.iter().map(|tenant| (tenant.as_str(), ABSENT)).collect();
        for job in jobs.iter().filter(is_limited) {
            if let (Some(stall), Some(largest)) = (job.stall_share, stalls.get_mut(job.tenant.as_str())) {
                // `max` ignores the value of a tenant without a measured job, which is NaN.
                *largest = largest.max(stall);
            }
        }
        for (tenant, stall) in stalls {
            gauge!(TENANT_STALL_FRACTION, "tenant" => tenant.to_owned()).set(stall);
        }
    }

    /// Removes the metrics of all tenants, because another coordinator leads and publishes them.
    pub(crate) fn retire(&mut self) {
        for tenant in std::mem::take(&mut self.0) {
            gauge!(TENANT_JOBS, "tenant" => tenant.clone()).set(ABSENT);
            gauge!(TENANT_CORES, "tenant" => tenant.clone()).set(ABSENT);
            gauge!(TENANT_STALL_FRACTION, "tenant" => tenant).set(ABSENT);
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics::with_local_recorder;

    use super::*;
    use crate::metrics::tests::GaugeRecorder;

    fn job(tenant: &str, demand: Option<f64>, rows_per_s: f64, stall: Option<f64>) -> JobView {
        let view = JobView::new(JobId(1), tenant, "job");
        JobView { demand_rows_per_s: demand, rows_per_s, stall_share: stall, ..view }
    }

    #[test]
    fn the_stalls_of_a_tenant_are_those_of_its_most_starved_job() {
        let recorder = GaugeRecorder::default();
        with_local_recorder(&recorder, || {
            let gauges = TenantGauges(["text", "vision", "waiting", "benchmark"].map(str::to_owned).into());
            gauges.publish_stalls(&[
                job("vision", Some(10.0), 9.0, Some(0.1)),
                job("vision", Some(10.0), 5.0, Some(0.5)),
                job("text", Some(10.0), 0.0, None),
                job("waiting", None, 0.0, Some(1.0)),
                job("benchmark", None, 99.0, Some(1.0)),
            ]);
            let exported = recorder.exported();
            let expected = ["vision 0.5", "waiting 1"].map(|of| format!("{TENANT_STALL_FRACTION} {of}"));
            assert_eq!(exported, expected);
            gauges.publish_stalls(&[]);
            assert!(recorder.exported().is_empty(), "the jobs have ended");
        });
    }
}
