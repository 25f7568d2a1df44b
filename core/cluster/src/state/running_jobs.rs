//! The number of running jobs of each tenant, updated when a job starts or ends.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunningJobs {
    by_tenant: BTreeMap<String, u32>,
    total: usize,
}

impl RunningJobs {
    /// Updates the counts after a change of a job. `was_running` and `is_running` describe the job before and after the
    /// change. Returns whether the counts changed.
    pub(crate) fn update(&mut self, tenant: &str, was_running: bool, is_running: bool) -> bool {
        match (was_running, is_running) {
            (false, true) => {
                *self.by_tenant.entry(tenant.to_owned()).or_default() += 1;
                self.total += 1;
            }
            (true, false) => {
                if let Some(jobs) = self.by_tenant.get_mut(tenant) {
                    *jobs -= 1;
                    self.total -= 1;
                    if *jobs == 0 {
                        self.by_tenant.remove(tenant);
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// The number of running jobs of all tenants.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn of_tenant(&self, tenant: &str) -> u32 {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_counted_when_they_begin_and_end() {
        let mut running = RunningJobs::default();
        assert!(
            running.update("a", false, true)
                && running.update("a", false, true)
                && running.update("b", false, true)
        );
        assert!(!running.update("a", true, true) && !running.update("a", false, false));
        assert_eq!((running.total(), running.of_tenant("a"), running.of_tenant("c")), (3, 2, 0));
        assert!(running.update("b", true, false) && running.update("a", true, false));
        assert_eq!((running.total(), running.of_tenant("a"), running.of_tenant("b")), (1, 1, 0));
        let mut one = RunningJobs::default();
        one.update("a", false, true);
        assert_eq!(running, one);
    }
}
