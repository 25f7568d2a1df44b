//! Whose task of preparing a dataset goes to a worker next: of those who have the fewest at work, whoever has waited longest.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::JobId;

/// Jobs of a tenant with tasks that wait: tasks at work, the turn that it had last, its id, tasks that wait.
type Line = BTreeSet<(usize, u64, JobId, usize)>;

/// Tenants and their jobs in the order of their turns.
#[derive(Debug)]
pub(super) struct TenantRotation {
    /// Turns given so far.
    turn: u64,
    /// Tasks at work of each tenant, and the turn that one of its jobs had last.
    tenants: BTreeMap<String, (usize, u64)>,
    lines: BTreeMap<String, Line>,
}

impl TenantRotation {
    pub(super) fn new(turn: u64) -> Self {
        Self { turn, tenants: BTreeMap::new(), lines: BTreeMap::new() }
    }

    /// Turns given so far.
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Puts a job in its tenant's line. One without tasks that wait counts for its tenant all the same.
    pub(super) fn put(&mut self, tenant: &str, job: JobId, at_work: usize, waiting: usize, turn: u64) {
        let of_tenant = self.tenants.entry(tenant.to_owned()).or_default();
        *of_tenant = (of_tenant.0 + at_work, of_tenant.1.max(turn));
        if waiting > 0 {
            self.lines.entry(tenant.to_owned()).or_default().insert((at_work, turn, job, waiting));
        }
    }

    /// The job whose next task goes to a worker; `None` where none waits.
    pub(super) fn next_job(&mut self) -> Option<JobId> {
        let has_had = |tenant: &&String| self.tenants.get(*tenant).copied().unwrap_or_default();
        let tenant = self.lines.keys().min_by_key(has_had)?.clone();
        let line = self.lines.get_mut(&tenant)?;
        let (at_work, _, job, waiting) = line.pop_first()?;
        self.turn += 1;
        if waiting > 1 {
            line.insert((at_work + 1, self.turn, job, waiting - 1));
        }
        if line.is_empty() {
            self.lines.remove(&tenant);
        }
        let of_tenant = self.tenants.entry(tenant).or_default();
        *of_tenant = (of_tenant.0 + 1, self.turn);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(turns: &mut TenantRotation, most: usize) -> Vec<u64> {
        std::iter::from_fn(|| turns.next_job()).take(most).map(|job| job.0).collect()
    }

    #[test]
    fn tenants_have_even_parts_and_of_a_tenant_its_jobs() {
        let mut turns = TenantRotation::new(0);
        turns.put("a", JobId(1), 0, 100, 0);
        turns.put("a", JobId(2), 0, 100, 0);
        turns.put("b", JobId(3), 0, 2, 0);
        assert_eq!(given(&mut turns, 6), [1, 3, 2, 3, 1, 2]);
        assert_eq!(turns.turn(), 6);
    }

    #[test]
    fn who_has_more_at_work_waits_whatever_its_id() {
        let mut turns = TenantRotation::new(9);
        turns.put("a", JobId(1), 2, 100, 0);
        turns.put("a", JobId(2), 1, 0, 0);
        turns.put("b", JobId(3), 0, 100, 9);
        assert_eq!(given(&mut turns, 5), [3, 3, 3, 1, 3]);
    }

    /// One place that becomes free at a time goes round.
    #[test]
    fn who_waits_longest_is_next() {
        let last = |turns: [u64; 3]| {
            let mut line = TenantRotation::new(10);
            for (place, turn) in turns.into_iter().enumerate() {
                line.put(&format!("t{place}"), JobId(place as u64), 0, 5, turn);
            }
            line.next_job().map(|job| job.0)
        };
        assert_eq!((last([8, 9, 10]), last([11, 9, 10]), last([11, 12, 10])), (Some(0), Some(1), Some(2)));
        let mut none = TenantRotation::new(0);
        none.put("a", JobId(1), 3, 0, 0);
        assert_eq!(none.next_job(), None);
    }
}
