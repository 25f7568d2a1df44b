//! Lost workers that listed or indexed shards: counts the losses of each task. Tasks with two losses run alone on a worker
//! (`losses.rs`).

use std::collections::BTreeSet;
use std::ops::Range;

use feedline_data::ids::{JobId, TaskId, WorkerId};
use feedline_data::messages::JobState;

use crate::{Cluster, Ready};

impl Cluster {
    /// Counts the tasks of a lost worker, and returns them to the queue. A task with several shards is divided, so that the
    /// next loss names the shard. Fails the job after the permitted number of losses.
    pub(crate) fn return_lost_tasks(
        &mut self,
        worker: WorkerId,
        tasks: &BTreeSet<TaskId>,
        ready: &mut Ready,
    ) {
        for id in tasks {
            let Some(job) = self.task_jobs.get(id).copied() else { continue };
            let Some(preparation) = self.preparations.get_mut(&job) else { continue };
            let Some(task) = preparation.task(*id).cloned() else { continue };
            let lost: Vec<WorkerId> = task.lost.iter().copied().chain([worker]).collect();
            if lost.len() >= self.settings.limits.lost_workers as usize {
                let message = self.lost_task_message(job, task.shards);
                self.end_job(job, JobState::Failed(message), ready);
                continue;
            }
            match task.shards {
                Some(range) if range.len() > 1 => {
                    self.remove_task(job, *id);
                    range.for_each(|shard| self.add_task(job, Some(shard..shard + 1), lost.clone()));
                }
                _ => {
                    preparation.set_lost(*id, lost);
                    self.return_tasks(&[*id].into());
                }
            }
        }
    }

    /// Gives a worker a task that runs alone.
    pub(crate) fn assign_isolated_task(&mut self, job: JobId, task: TaskId, worker: WorkerId) {
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        preparation.assign_isolated_task(task, worker);
        if let Some(found) = self.workers.get_mut(&worker) {
            found.add_task(task);
        }
    }

    fn lost_task_message(&self, job: JobId, shards: Option<Range<usize>>) -> String {
        let urls = shards.and_then(|range| {
            let listed = self.preparations.get(&job)?.pending(range);
            Some(listed.iter().map(|shard| shard.url.clone()).collect::<Vec<_>>().join(", "))
        });
        let (verb, object) = match &urls {
            Some(urls) => ("indexed", urls.as_str()),
            None => ("listed", "the source"),
        };
        let lost = self.settings.limits.lost_workers;
        format!(
            "{lost} workers were lost one after another while they {verb} {object}; look for the reason in the logs and exit statuses of the workers, such as too little memory, then repair or remove the file"
        )
    }
}
