//! Prepares a job's dataset: workers list and index the shards, unless a saved index is still valid.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use feedline_data::ids::{JobId, TaskId, WorkerId};
use feedline_data::manifest::{Manifest, ShardIndex, ShardRef};
use feedline_data::messages::{JobState, Task, TaskOutput, TaskResult, source_key};

use crate::dataset_checks::{check_dataset, check_shard_count, first_defect};
use crate::records::Record;
use crate::state::preparation::Preparation;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, Ready};

/// Maximum number of shards that one task indexes.
const MAX_TASK_SHARDS: usize = 16;
/// A task is full when the total size of its shards reaches this number of bytes.
const MAX_TASK_BYTES: u64 = 256 << 20;
/// Maximum number of concurrent tasks on a worker.
const MAX_TASKS_PER_WORKER: usize = 2;

impl Cluster {
    /// Starts to prepare a job's dataset. The first task lists the shards.
    pub(crate) fn begin_preparation(&mut self, job: JobId, saved: Option<Arc<Manifest>>) {
        self.preparations.insert(job, Preparation::new(saved));
        self.add_task(job, None);
    }

    fn add_task(&mut self, job: JobId, shards: Option<Range<usize>>) {
        let id = TaskId(self.next_task);
        self.next_task += 1;
        if let Some(preparation) = self.preparations.get_mut(&job) {
            preparation.add_task(id, shards);
            self.task_jobs.insert(id, job);
        }
        self.update_task_queue(job);
    }

    /// Removes a task from the preparation and from the worker that runs it.
    fn remove_task(&mut self, job: JobId, id: TaskId) {
        self.task_jobs.remove(&id);
        let task = self.preparations.get_mut(&job).and_then(|preparation| preparation.remove_task(id));
        if let Some(worker) = task.and_then(|task| task.worker) {
            self.take_task(worker, id);
        }
        self.update_task_queue(job);
    }

    fn take_task(&mut self, worker: WorkerId, id: TaskId) {
        if let Some(worker) = self.workers.get_mut(&worker)
            && worker.tasks.remove(&id)
        {
            worker.revision += 1;
        }
    }

    fn update_task_queue(&mut self, job: JobId) {
        if let (Some(preparation), Some(found)) = (self.preparations.get(&job), self.jobs.get(&job)) {
            let (running, waiting) = preparation.task_counts();
            self.task_queue.set(job, &found.spec.tenant, running, waiting);
        }
    }

    /// Ends the preparation of a job, and removes its tasks from the workers that run them.
    pub(crate) fn drop_preparation(&mut self, job: JobId) {
        let Some(preparation) = self.preparations.remove(&job) else { return };
        self.task_queue.remove(job);
        for (id, task) in preparation.tasks() {
            self.task_jobs.remove(&id);
            if let Some(worker) = task.worker {
                self.take_task(worker, id);
            }
        }
    }

    /// Assigns waiting tasks to workers with a free task slot. Tenants take turns, and so do the jobs of a tenant, so that a
    /// dataset with many shards does not delay other datasets.
    pub(crate) fn hand_out_tasks(&mut self) {
        let visited: Vec<WorkerId> = self.workers.visited().iter().copied().collect();
        for id in visited {
            let worker = &self.workers[&id];
            let has_room = worker.accepts_work() && worker.tasks.len() < MAX_TASKS_PER_WORKER;
            self.set_task_room(id, has_room.then_some(worker.tasks.len()));
        }
        while let Some((running, worker)) = self.task_room.first().copied() {
            let Some(job) = self.task_queue.start_next() else { break };
            self.examined_items += 1;
            let task =
                self.preparations.get_mut(&job).and_then(|preparation| preparation.assign_task(worker));
            if let (Some(id), Some(found)) = (task, self.workers.get_mut(&worker)) {
                found.tasks.insert(id);
                found.revision += 1;
            }
            self.set_task_room(worker, Some(running + 1).filter(|running| *running < MAX_TASKS_PER_WORKER));
        }
    }

    /// Sets the number of running tasks of a worker that can run more tasks. `None` means that the worker cannot run more
    /// tasks.
    fn set_task_room(&mut self, id: WorkerId, running: Option<usize>) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let before = std::mem::replace(&mut worker.queued_tasks, running);
        if let Some(before) = before {
            self.task_room.remove(&(before, id));
        }
        if let Some(running) = running {
            self.task_room.insert((running, id));
        }
    }

    /// Returns the tasks in a worker's plan.
    pub(crate) fn tasks_of(&self, worker: &TrackedWorker) -> Vec<Task> {
        let task = |id: &TaskId| {
            let job = self.task_jobs.get(id)?;
            let (preparation, spec) = (self.preparations.get(job)?, &self.jobs.get(job)?.spec);
            let shards = preparation.task(*id)?.shards.clone();
            let reads = self.settings.tenants.reads_of(&spec.tenant).clone();
            let shards = shards.map(|range| preparation.listed(range));
            Some(Task { id: *id, source: spec.pipeline.source.clone(), shards, reads })
        };
        worker.tasks.iter().filter_map(task).collect()
    }

    /// Returns the tasks of an expired worker to the queue.
    pub(crate) fn return_tasks(&mut self, lost: &BTreeSet<TaskId>) {
        for id in lost {
            let Some(job) = self.task_jobs.get(id).copied() else { continue };
            if let Some(preparation) = self.preparations.get_mut(&job) {
                preparation.return_task(*id);
            }
            self.update_task_queue(job);
        }
    }

    pub(crate) fn on_task_results(&mut self, worker: WorkerId, results: Vec<TaskResult>, ready: &mut Ready) {
        for result in results {
            self.take_task(worker, result.id);
            let Some(job) = self.task_jobs.get(&result.id).copied() else { continue };
            let task = self.preparations.get(&job).and_then(|preparation| preparation.task(result.id));
            let Some(shards) = task.map(|task| task.shards.clone()) else { continue };
            match (result.outcome, shards) {
                (Ok(TaskOutput::Listed(listed)), None) => self.on_listed(job, result.id, listed, ready),
                (Ok(TaskOutput::Indexed(indexes)), Some(range)) => {
                    self.on_indexed(job, result.id, range, indexes, ready);
                }
                // The result has the wrong kind for the task.
                (Ok(_), _) => self.return_tasks(&[result.id].into()),
                (Err(message), _) => self.end_job(job, JobState::Failed(message), ready),
            }
        }
    }

    fn on_listed(&mut self, job: JobId, task: TaskId, shards: Vec<ShardRef>, ready: &mut Ready) {
        if let Err(message) = check_shard_count(shards.len()) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        self.remove_task(job, task);
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        if let Some(saved) = preparation.saved_index.take() {
            match saved.check_unchanged(&shards) {
                Ok(()) => self.save_index(job, saved, ready),
                Err(message) => self.end_job(job, JobState::Failed(message), ready),
            }
            return;
        }
        let ranges = task_ranges(&shards);
        preparation.set_listed(shards);
        ranges.into_iter().for_each(|range| self.add_task(job, Some(range)));
        self.touch_consumers_of_job(job);
        self.finish_index(job, ready);
    }

    fn on_indexed(
        &mut self,
        job: JobId,
        task: TaskId,
        range: Range<usize>,
        indexes: Vec<ShardIndex>,
        ready: &mut Ready,
    ) {
        if range.len() != indexes.len() {
            let message = format!(
                "a worker returned indexes for {} shards, but its task had {} shards; run the same release on all hosts",
                indexes.len(),
                range.len()
            );
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        self.remove_task(job, task);
        if let Some(preparation) = self.preparations.get_mut(&job) {
            preparation.set_indexes(range, indexes);
        }
        self.touch_consumers_of_job(job);
        self.finish_index(job, ready);
    }

    fn finish_index(&mut self, job: JobId, ready: &mut Ready) {
        let Some(shards) = self.preparations.get_mut(&job).and_then(Preparation::take_shards) else { return };
        let defect = first_defect(&shards);
        match Manifest::build(shards) {
            Ok(manifest) => self.save_index(job, Arc::new(manifest), ready),
            // If the dataset has no readable rows, the first defect explains the cause better.
            Err(message) => self.end_job(job, JobState::Failed(defect.unwrap_or(message)), ready),
        }
    }

    /// Asks the driver to save an index, so that every later leader can load it.
    fn save_index(&mut self, job: JobId, manifest: Arc<Manifest>, ready: &mut Ready) {
        let (Some(found), Some(preparation)) = (self.jobs.get(&job), self.preparations.get_mut(&job)) else {
            return;
        };
        let key = source_key(&found.spec.tenant, &found.spec.pipeline.source);
        ready.manifests.push((job, key, Arc::clone(&manifest)));
        preparation.unsaved_index = Some(manifest);
    }

    pub(crate) fn on_index_saved(&mut self, job: JobId, saved: Result<(), String>, ready: &mut Ready) {
        let preparation = self.preparations.get_mut(&job);
        let Some(manifest) = preparation.and_then(|preparation| preparation.unsaved_index.take()) else {
            return;
        };
        match saved {
            Ok(()) => self.start_job(job, &manifest, ready),
            Err(message) => self.end_job(job, JobState::Failed(message), ready),
        }
    }

    /// Starts a job with an indexed dataset. Fails the job if its pipeline is incompatible with the dataset.
    fn start_job(&mut self, job: JobId, manifest: &Manifest, ready: &mut Ready) {
        self.drop_preparation(job);
        let Some(found) = self.jobs.get(&job) else { return };
        if let Err(message) = check_dataset(&found.spec, manifest) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        self.record(Record::DatasetIndexed { job, dataset: manifest.summary() }, ready);
        self.touch_consumers_of_job(job);
    }

    fn touch_consumers_of_job(&mut self, job: JobId) {
        if let Some(found) = self.jobs.get_mut(&job) {
            found.touch_all_consumers();
        }
    }
}

/// Divides the listed shards into ranges, one range per task.
fn task_ranges(shards: &[ShardRef]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (place, shard) in shards.iter().enumerate() {
        bytes = bytes.saturating_add(shard.size_bytes);
        if bytes >= MAX_TASK_BYTES || place + 1 - start >= MAX_TASK_SHARDS {
            ranges.push(start..place + 1);
            (start, bytes) = (place + 1, 0);
        }
    }
    if start < shards.len() {
        ranges.push(start..shards.len());
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_at_most_16_shards_and_about_256_mib() {
        let shard = |size_bytes| ShardRef { url: String::new(), size_bytes, version: String::new(), part: 0 };
        assert_eq!(task_ranges(&vec![shard(1); 33]), [0..16, 16..32, 32..33]);
        let sizes = [MAX_TASK_BYTES - 1, 1, 1, MAX_TASK_BYTES, 5];
        assert_eq!(task_ranges(&sizes.map(shard)), [0..2, 2..4, 4..5]);
        assert_eq!(task_ranges(&[]), Vec::<std::ops::Range<usize>>::new());
    }
}
