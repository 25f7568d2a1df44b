//! Fair order of the indexing tasks of all jobs. The next task belongs to the tenant with the fewest running tasks, and to
//! the job of that tenant with the fewest running tasks. Ties go to the tenant or job that has waited longest.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::JobId;

/// Sort key of a job in its tenant's queue: running tasks, turn of its last started task, id.
type JobOrder = (usize, u64, JobId);
/// Sort key of a tenant with waiting tasks: running tasks, turn of its last started task, name.
type TenantOrder = (usize, u64, String);

#[derive(Debug, Default)]
pub(crate) struct TaskQueue {
    /// The number of started tasks.
    turn: u64,
    jobs: BTreeMap<JobId, JobTasks>,
    tenants: BTreeMap<String, TenantTasks>,
    order: BTreeSet<TenantOrder>,
}

#[derive(Debug, Clone)]
struct JobTasks {
    tenant: String,
    running: usize,
    waiting: usize,
    turn: u64,
}

#[derive(Debug, Default)]
struct TenantTasks {
    jobs: usize,
    running: usize,
    turn: u64,
    /// Jobs with waiting tasks.
    waiting: BTreeSet<JobOrder>,
}

impl TaskQueue {
    /// Sets the numbers of running and waiting tasks of a job. Adds the job if it is new.
    pub(crate) fn set(&mut self, job: JobId, tenant: &str, running: usize, waiting: usize) {
        let turn = self.jobs.get(&job).map_or(self.turn, |tasks| tasks.turn);
        self.remove(job);
        self.insert(job, JobTasks { tenant: tenant.to_owned(), running, waiting, turn });
    }

    pub(crate) fn remove(&mut self, job: JobId) {
        let Some(tasks) = self.jobs.remove(&job) else { return };
        let Some(tenant) = self.tenants.get_mut(&tasks.tenant) else { return };
        self.order.remove(&(tenant.running, tenant.turn, tasks.tenant.clone()));
        tenant.jobs -= 1;
        tenant.running -= tasks.running;
        tenant.waiting.remove(&(tasks.running, tasks.turn, job));
        if !tenant.waiting.is_empty() {
            self.order.insert((tenant.running, tenant.turn, tasks.tenant.clone()));
        }
        if tenant.jobs == 0 {
            self.tenants.remove(&tasks.tenant);
        }
    }

    fn insert(&mut self, job: JobId, tasks: JobTasks) {
        let tenant = self.tenants.entry(tasks.tenant.clone()).or_default();
        self.order.remove(&(tenant.running, tenant.turn, tasks.tenant.clone()));
        tenant.jobs += 1;
        tenant.running += tasks.running;
        tenant.turn = tenant.turn.max(tasks.turn);
        if tasks.waiting > 0 {
            tenant.waiting.insert((tasks.running, tasks.turn, job));
        }
        if !tenant.waiting.is_empty() {
            self.order.insert((tenant.running, tenant.turn, tasks.tenant.clone()));
        }
        self.jobs.insert(job, tasks);
    }

    /// Starts the next task and returns its job; `None` if no task is waiting.
    pub(crate) fn start_next(&mut self) -> Option<JobId> {
        let (.., tenant) = self.order.first()?;
        let (.., job) = *self.tenants.get(tenant)?.waiting.first()?;
        self.turn += 1;
        let mut tasks = JobTasks { turn: self.turn, ..self.take(job)? };
        tasks.running += 1;
        tasks.waiting -= 1;
        self.insert(job, tasks);
        Some(job)
    }

    fn take(&mut self, job: JobId) -> Option<JobTasks> {
        let tasks = self.jobs.get(&job)?.clone();
        self.remove(job);
        Some(tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(queue: &mut TaskQueue, count: usize) -> Vec<u64> {
        std::iter::from_fn(|| queue.start_next()).take(count).map(|job| job.0).collect()
    }

    #[test]
    fn tenants_take_turns_and_so_do_the_jobs_of_a_tenant() {
        let mut queue = TaskQueue::default();
        queue.set(JobId(1), "a", 0, 100);
        queue.set(JobId(2), "a", 0, 100);
        queue.set(JobId(3), "b", 0, 2);
        assert_eq!(started(&mut queue, 6), [1, 3, 2, 3, 1, 2]);
    }

    #[test]
    fn a_tenant_with_more_running_tasks_waits() {
        let mut queue = TaskQueue::default();
        queue.set(JobId(1), "a", 2, 100);
        queue.set(JobId(2), "a", 1, 0);
        queue.set(JobId(3), "b", 0, 100);
        assert_eq!(started(&mut queue, 5), [3, 3, 3, 1, 3]);
    }

    #[test]
    fn among_equal_tenants_the_tenant_that_waited_longest_is_next() {
        let mut queue = TaskQueue::default();
        for job in 0..3 {
            queue.set(JobId(job), &format!("tenant {job}"), 0, 5);
        }
        assert_eq!(started(&mut queue, 2), [0, 1]);
        // The tasks of both jobs have finished.
        queue.set(JobId(0), "tenant 0", 0, 4);
        queue.set(JobId(1), "tenant 1", 0, 4);
        assert_eq!(started(&mut queue, 3), [2, 0, 1]);
    }

    #[test]
    fn finished_and_removed_jobs_start_nothing() {
        let mut queue = TaskQueue::default();
        queue.set(JobId(1), "a", 3, 0);
        assert_eq!(queue.start_next(), None);
        queue.set(JobId(1), "a", 3, 2);
        queue.set(JobId(2), "a", 0, 1);
        queue.remove(JobId(1));
        queue.remove(JobId(9));
        assert_eq!(started(&mut queue, 9), [2]);
        queue.remove(JobId(2));
        assert!(queue.jobs.is_empty() && queue.tenants.is_empty() && queue.order.is_empty());
    }
}
