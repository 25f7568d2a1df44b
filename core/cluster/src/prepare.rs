//! Prepares a job's dataset: workers list the shards, and index those that changed since the saved index.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use feedline_data::growth::{Growth, GrowthPosition, check_partition_count};
use feedline_data::ids::{JobId, TaskId, WorkerId};
use feedline_data::manifest::{DatasetSummary, IndexedShard, Manifest, ShardRef};
use feedline_data::messages::{JobState, Task, TaskOutput, TaskResult, index_key};
use feedline_data::pipeline::Format;

use crate::dataset_checks::{check_dataset, check_shard_count, check_start, first_defect};
use crate::records::Record;
use crate::state::first_record::FirstRecordWait;
use crate::state::job::TrackedJob;
use crate::state::preparation::Preparation;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, IndexToSave, Ready, SavedIndexes};

/// Maximum number of shards that one task indexes.
const MAX_TASK_SHARDS: usize = 16;
/// Maximum number of shards of a task that are not read, such as images in the directories of their classes.
const MAX_TASK_UNREAD_SHARDS: usize = 1024;
/// A task is full when the total size of the shards that it reads reaches this number of bytes.
const MAX_TASK_BYTES: u64 = 256 << 20;
/// The error of a job that resumes in a topic without the index of its position.
const UNKNOWN_OFFSETS: &str = "the coordinators have no record of the offsets that the position refers to, or have removed it after many newer jobs; \
    resume with the same pipeline, tenant and coordinators as before and without a new index, or open a new job without a position";
/// Maximum number of concurrent tasks on a worker.
const MAX_TASKS_PER_WORKER: usize = 2;

impl Cluster {
    /// Starts to prepare a job's dataset. The first task lists the shards.
    pub(crate) fn begin_preparation(&mut self, job: JobId, saved: SavedIndexes) {
        self.preparations.insert(job, Preparation::new(saved));
        self.add_task(job, None, Vec::new());
    }

    pub(crate) fn add_task(&mut self, job: JobId, shards: Option<Range<usize>>, lost: Vec<WorkerId>) {
        let id = TaskId(self.next_task);
        self.next_task += 1;
        if let Some(preparation) = self.preparations.get_mut(&job) {
            preparation.add_task(id, shards, lost);
            if preparation.is_isolated(id) {
                self.isolated_tasks.insert((job, id));
            }
            self.task_jobs.insert(id, job);
        }
        self.update_task_queue(job);
    }

    /// Removes a task from the preparation and from the worker that runs it.
    pub(crate) fn remove_task(&mut self, job: JobId, id: TaskId) {
        self.task_jobs.remove(&id);
        let task = self.preparations.get_mut(&job).and_then(|preparation| preparation.remove_task(id));
        if let Some(worker) = task.and_then(|task| task.worker) {
            self.take_task(worker, id);
        }
        self.update_task_queue(job);
    }

    pub(crate) fn take_task(&mut self, worker: WorkerId, id: TaskId) {
        if let Some(worker) = self.workers.get_mut(&worker)
            && worker.tasks.remove(&id)
        {
            worker.revision += 1;
        }
    }

    pub(crate) fn update_task_queue(&mut self, job: JobId) {
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
        while let Some(first) = self.task_room.first().copied() {
            let Some(job) = self.task_queue.start_next() else { break };
            // A worker that cannot reach the brokers of a running job does not list its topics again if there is another worker.
            let growth = self.jobs.get(&job).and_then(|found| found.growth.as_ref());
            let avoided = growth.and_then(|growth| growth.failed_worker);
            let chosen = self.task_room.iter().find(|(_, worker)| Some(*worker) != avoided);
            let (running, worker) = chosen.copied().unwrap_or(first);
            self.examined_items += 1;
            let task =
                self.preparations.get_mut(&job).and_then(|preparation| preparation.assign_task(worker));
            if let (Some(id), Some(found)) = (task, self.workers.get_mut(&worker)) {
                found.add_task(id);
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
            let shards = shards.map(|range| preparation.pending(range));
            let found = self.jobs.get(job)?;
            let lists_growth = shards.is_none() && (found.layout.is_some() || found.first_record.waits());
            Some(Task { id: *id, source: spec.pipeline.listed_source(), shards, reads, lists_growth })
        };
        worker.tasks.iter().filter_map(task).collect()
    }

    /// Returns the tasks of a worker to the queue.
    pub(crate) fn return_tasks(&mut self, lost: &BTreeSet<TaskId>) {
        for id in lost {
            let Some(job) = self.task_jobs.get(id).copied() else { continue };
            if let Some(preparation) = self.preparations.get_mut(&job) {
                preparation.return_task(*id);
                if preparation.is_isolated(*id) {
                    self.isolated_tasks.insert((job, *id));
                }
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
                (Ok(TaskOutput::Listed(listed)), None) if self.is_running(job) => {
                    self.on_growth_listed(job, &listed, ready);
                }
                (Ok(TaskOutput::Unavailable(reason)), None) => {
                    self.on_growth_unavailable(job, worker, reason, ready);
                }
                (Ok(TaskOutput::Listed(listed)), None) => self.on_listed(job, result.id, listed, ready),
                (Ok(TaskOutput::Indexed(indexes)), Some(range)) => {
                    self.on_indexed(job, result.id, range, indexes, ready);
                }
                // The result has the wrong kind for the task.
                (Ok(_), _) => self.return_tasks(&[result.id].into()),
                (Err(message), _) if self.is_running(job) => self.on_growth_failed(job, message, ready),
                (Err(message), _) => self.end_job(job, JobState::Failed(message), ready),
            }
        }
    }

    fn on_listed(&mut self, job: JobId, task: TaskId, shards: Vec<ShardRef>, ready: &mut Ready) {
        let check = if self.is_unbounded(job) { check_partition_count } else { check_shard_count };
        if let Err(message) = check(shards.len()) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        self.remove_task(job, task);
        let resumes_growing = self
            .jobs
            .get(&job)
            .is_some_and(|found| found.spec.start.is_some() && found.spec.pipeline.source.is_growing());
        if resumes_growing {
            let Some(preparation) = self.preparations.get_mut(&job) else { return };
            let saved = preparation.saved_index.take();
            self.on_growing_listed(job, saved, &shards, ready);
            return;
        }
        let Some((shards, mut indexed)) = self.with_first_offsets(job, shards) else {
            self.wait_for_first_record(job);
            return;
        };
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        if let Some(saved) = preparation.saved_index.take() {
            let reuse = saved.reuse_for(&shards);
            preparation.changes = reuse.changes;
            let is_complete = reuse.is_complete(saved.shards.len());
            if !is_complete {
                let known = |number: Option<usize>| number.map(|number| saved.shards[number].to_indexed());
                indexed = reuse.indexed.into_iter().map(known).collect();
            }
            // Only the latest index is compared with the shards, but the position may refer to it too.
            preparation.start_index.get_or_insert_with(|| Arc::clone(&saved));
            if is_complete {
                self.finish_manifest(job, saved, ready);
                return;
            }
        }
        preparation.set_listed(shards, indexed);
        let source = self.jobs.get(&job).map(|found| &found.spec.pipeline.source);
        let formats: Vec<Format> =
            source.iter().flat_map(|source| source.datasets()).map(|source| source.format).collect();
        let ranges = task_ranges(&preparation.pending(0..preparation.pending_len()), &formats);
        ranges.into_iter().for_each(|range| self.add_task(job, Some(range), Vec::new()));
        self.touch_consumers_of_job(job);
        self.finish_index(job, ready);
    }

    /// Handles the listing of a job that resumes in a growing source. The job continues with the recorded offsets.
    fn on_growing_listed(
        &mut self,
        job: JobId,
        saved: Option<Arc<Manifest>>,
        listed: &[ShardRef],
        ready: &mut Ready,
    ) {
        let start = self.jobs.get(&job).and_then(|found| found.spec.start.as_ref());
        let growth = start.and_then(|start| start.growth.as_deref());
        let ranges = start.and_then(|start| start.ranges.as_deref());
        let checked = match (growth, saved, ranges) {
            (Some(growth), ..) => growth.growth.compare(listed).map(|_| Arc::new(growth.manifest())),
            (None, Some(saved), _) => saved.check_resumable(listed).map(|()| saved),
            (None, None, Some(ranges)) => ranges
                .manifest()
                .and_then(|recorded| recorded.check_resumable(listed).map(|()| Arc::new(recorded))),
            (None, None, None) => Err(UNKNOWN_OFFSETS.to_owned()),
        };
        match checked {
            Ok(manifest) => self.finish_manifest(job, manifest, ready),
            Err(message) => self.end_job(job, JobState::Failed(message), ready),
        }
    }

    fn on_indexed(
        &mut self,
        job: JobId,
        task: TaskId,
        range: Range<usize>,
        indexes: Vec<IndexedShard>,
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
        let Some(found) = self.jobs.get(&job) else { return };
        let defect = first_defect(&shards, found.spec.pipeline.on_error);
        let has_columns = shards.iter().any(|shard| shard.index.schema.is_some());
        match Manifest::of_source(shards, &found.spec.pipeline.source) {
            Ok(manifest) if self.is_unbounded(job) => {
                let (growth, columns) = (Growth::of_manifest(&manifest), manifest.schema);
                if let Some(preparation) = self.preparations.get_mut(&job) {
                    preparation.partitions.clone_from(&growth.partitions);
                }
                let manifest = GrowthPosition { growth, columns, split_rows: 0 }.manifest();
                self.finish_manifest(job, Arc::new(manifest), ready);
            }
            // The records of the topics determine the columns, so the job waits for the first record.
            Err(_) if self.is_unbounded(job) && defect.is_none() && !has_columns => {
                self.wait_for_first_record(job);
            }
            Ok(manifest) => self.finish_manifest(job, Arc::new(manifest), ready),
            // If the dataset has no readable rows, the first defect explains the cause better.
            Err(message) => self.end_job(job, JobState::Failed(defect.unwrap_or(message)), ready),
        }
    }

    /// Checks that the job may start with this content, and saves the index. An index that does not match the start position is
    /// not saved, so that the saved index still names the shards that changed.
    fn finish_manifest(&mut self, job: JobId, manifest: Arc<Manifest>, ready: &mut Ready) {
        let (Some(found), Some(preparation)) = (self.jobs.get(&job), self.preparations.get(&job)) else {
            return;
        };
        let start_index = preparation.start_index.as_deref();
        match check_start(&found.spec, &manifest, start_index) {
            Ok(()) => self.save_index(job, manifest, ready),
            Err(message) => self.end_job(job, JobState::Failed(message), ready),
        }
    }

    /// Asks the driver to save an index, so that every later leader can load it.
    fn save_index(&mut self, job: JobId, manifest: Arc<Manifest>, ready: &mut Ready) {
        let Some(found) = self.jobs.get(&job) else { return };
        let (tenant, source) = (&found.spec.tenant, found.spec.pipeline.listed_source());
        let uses_source = |other: &&TrackedJob| {
            !other.is_ended() && other.spec.tenant == *tenant && other.spec.pipeline.listed_source() == source
        };
        let references = self.jobs.values().filter(uses_source).filter_map(|other| other.dataset.as_ref());
        let mut in_use: Vec<String> =
            references.map(|dataset| dataset.index_reference().to_owned()).collect();
        let key = index_key(tenant, &source, &manifest.fingerprint());
        if source.is_growing() {
            in_use.extend(self.recorded_keys(tenant));
        }
        let index = IndexToSave { job, key, manifest: Arc::clone(&manifest), in_use };
        if let Some(preparation) = self.preparations.get_mut(&job) {
            ready.manifests.push(index);
            preparation.unsaved_index = Some(manifest);
        }
    }

    /// The keys of the indexes that the jobs of a tenant with growing sources use.
    fn recorded_keys(&self, tenant: &str) -> impl Iterator<Item = String> {
        let open = self.jobs.values().filter(move |job| !job.is_ended() && job.spec.tenant == tenant);
        open.filter(|job| job.spec.pipeline.source.is_growing()).filter_map(|job| {
            let (dataset, source) = (job.dataset.as_ref()?, job.spec.pipeline.listed_source());
            Some(index_key(&job.spec.tenant, &source, &dataset.fingerprint))
        })
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
        let preparation = self.preparations.get_mut(&job);
        let (changes, partitions) = preparation
            .map(|preparation| (preparation.changes, std::mem::take(&mut preparation.partitions)))
            .unwrap_or_default();
        self.drop_preparation(job);
        let Some(found) = self.jobs.get(&job) else { return };
        let mut dataset = DatasetSummary { changes, ..manifest.summary() };
        dataset.batch_bytes = found.spec.pipeline.expected_batch_bytes(&dataset);
        if let Err(message) = check_dataset(&found.spec, manifest, &dataset) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        if let Some(found) = self.jobs.get_mut(&job) {
            found.first_record = FirstRecordWait::default();
        }
        self.record(Record::DatasetIndexed { job, dataset: Box::new(dataset), dropped: None }, ready);
        if let Some(found) = self.jobs.get_mut(&job) {
            found.watch_epoch(false);
        }
        self.begin_group_commits(job);
        if !partitions.is_empty() {
            self.record(Record::Grown { job, partitions, segment: None, epoch_ms: 0 }, ready);
        }
        self.touch_consumers_of_job(job);
    }

    fn is_running(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|found| found.layout.is_some())
    }

    fn is_unbounded(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|found| found.spec.pipeline.source.is_unbounded())
    }

    fn touch_consumers_of_job(&mut self, job: JobId) {
        if let Some(found) = self.jobs.get_mut(&job) {
            found.touch_all_consumers();
        }
    }
}

/// Divides the listed shards into ranges, one range per task. `formats` are those of the datasets of a mix.
fn task_ranges(shards: &[ShardRef], formats: &[Format]) -> Vec<Range<usize>> {
    let is_read = |shard: &ShardRef| {
        let format = formats.get(shard.part as usize);
        !matches!(format, Some(Format::Files | Format::ImageFolder))
    };
    let mut ranges = Vec::new();
    let (mut start, mut bytes, mut unread) = (0, 0_u64, 0);
    for (place, shard) in shards.iter().enumerate() {
        if is_read(shard) {
            bytes = bytes.saturating_add(shard.size_bytes);
        } else {
            unread += 1;
        }
        let read = place + 1 - start - unread;
        if bytes >= MAX_TASK_BYTES || read >= MAX_TASK_SHARDS || unread >= MAX_TASK_UNREAD_SHARDS {
            ranges.push(start..place + 1);
            (start, bytes, unread) = (place + 1, 0, 0);
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
    fn a_task_has_more_shards_if_they_are_not_read() {
        let shard = |part| ShardRef { size_bytes: MAX_TASK_BYTES, part, ..ShardRef::default() };
        let formats = [Format::ImageFolder, Format::Text];
        assert_eq!(task_ranges(&vec![shard(0); 2000], &formats), [0..1024, 1024..2000]);
        assert_eq!(task_ranges(&[shard(0), shard(0), shard(1), shard(0)], &formats), [0..3, 3..4]);
    }

    #[test]
    fn a_task_has_at_most_16_shards_and_about_256_mib() {
        let shard = |size_bytes| ShardRef {
            url: String::new(),
            size_bytes,
            version: String::new(),
            ..ShardRef::default()
        };
        let task_ranges = |shards: &[ShardRef]| task_ranges(shards, &[Format::Text]);
        assert_eq!(task_ranges(&vec![shard(1); 33]), [0..16, 16..32, 32..33]);
        let sizes = [MAX_TASK_BYTES - 1, 1, 1, MAX_TASK_BYTES, 5];
        assert_eq!(task_ranges(&sizes.map(shard)), [0..2, 2..4, 4..5]);
        assert_eq!(task_ranges(&[]), Vec::<std::ops::Range<usize>>::new());
    }
}
