//! The quotas of tenants with observed jobs.

use feedline_data::messages::samples::JobProperties;
use feedline_data::tenants::Quota;

use crate::plan::TenantProblem;

/// Tenants with quotas, in the order in which their jobs were observed.
#[derive(Debug, Default)]
pub(super) struct ObservedTenants(Vec<ObservedTenant>);

#[derive(Debug)]
struct ObservedTenant {
    name: String,
    quota: Quota,
    job_count: u32,
    /// The number of jobs with a model. The planner plans only these jobs.
    planned_job_count: u32,
}

impl ObservedTenants {
    /// Adds a job. Returns the index of its tenant if the tenant has a quota of cores or cached bytes.
    pub(super) fn add(&mut self, properties: &JobProperties, is_planned: bool) -> Option<usize> {
        if properties.quota.cores.is_none() && properties.quota.cache_bytes.is_none() {
            return None;
        }
        let known = self.0.iter().position(|seen| seen.name == properties.tenant);
        let place = known.unwrap_or_else(|| {
            let (name, quota) = (properties.tenant.clone(), properties.quota);
            self.0.push(ObservedTenant { name, quota, job_count: 0, planned_job_count: 0 });
            self.0.len() - 1
        });
        self.0[place].job_count += 1;
        self.0[place].planned_job_count += u32::from(is_planned);
        Some(place)
    }

    /// Returns the share of each quota that plans may use. Jobs without a model receive an even share of their tenant's
    /// cores: see `core/cluster/src/quotas.rs`.
    pub(super) fn into_problems(self) -> Vec<TenantProblem> {
        let problem = |seen: ObservedTenant| {
            let part = f64::from(seen.planned_job_count.max(1)) / f64::from(seen.job_count);
            TenantProblem {
                name: seen.name,
                cores: seen.quota.cores.map(|cores| cores * part),
                cache_bytes: seen.quota.cache_bytes,
            }
        };
        self.0.into_iter().map(problem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{JOB, samples};
    use super::*;

    fn facts(tenant: &str, cores: Option<f64>) -> JobProperties {
        let quota = Quota { cores, ..Quota::default() };
        JobProperties { tenant: tenant.to_owned(), quota, ..samples(1, &[JOB]).jobs[0].clone() }
    }

    #[test]
    fn the_quota_is_divided_among_jobs_with_and_without_a_model() {
        let mut seen = ObservedTenants::default();
        assert_eq!(seen.add(&facts("free", None), true), None);
        assert_eq!(seen.add(&facts("a", Some(6.0)), true), Some(0));
        assert_eq!(seen.add(&facts("b", Some(4.0)), true), Some(1));
        assert_eq!(seen.add(&facts("a", Some(6.0)), false), Some(0));
        assert_eq!(seen.add(&facts("a", Some(6.0)), true), Some(0));
        let problems = seen.into_problems();
        let cores: Vec<(&str, Option<f64>)> =
            problems.iter().map(|tenant| (tenant.name.as_str(), tenant.cores)).collect();
        assert_eq!(cores, [("a", Some(4.0)), ("b", Some(4.0))]);
    }
}
