//! Preparing a job's dataset: workers list its shards, then index them, unless a saved index still holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::ids::{JobId, TaskId, WorkerId};
use feedline_data::layout::Layout;
use feedline_data::manifest::{Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::messages::{JobState, Task, TaskOutput, TaskResult, source_key};
use feedline_data::pipeline::{OnError, infer};

use super::records::Record;
use super::tenant_rotation::TenantRotation;
use super::workers::TrackedWorker;
use super::{Cluster, Ready};

/// A task indexes at most this many shards, or this many bytes of them.
const TASK_SHARDS: usize = 16;
const TASK_BYTES: u64 = 256 << 20;
/// Tasks that one worker works on at a time.
const TASKS_PER_WORKER: usize = 2;
/// Shards of a job: a coordinator has all of them in memory while they are indexed.
const MOST_SHARDS: usize = 10_000_000;

/// How far a dataset is. Soft state: lost with the coordinator's process and begun anew.
#[derive(Debug)]
pub(super) struct Preparation {
    pub(super) saved: Option<Arc<Manifest>>,
    listed: Option<Vec<ShardRef>>,
    indexed: Vec<Option<ShardIndex>>,
    /// Tasks not finished.
    tasks: BTreeMap<TaskId, PendingTask>,
    /// Those that no worker has.
    waiting: BTreeSet<TaskId>,
    /// The turn in which it last had a task handed out, or in which it began.
    turn: u64,
    /// What is being saved.
    saving: Option<Arc<Manifest>>,
}

#[derive(Debug)]
struct PendingTask {
    /// Shards, by place in the listing; `None` asks for the listing.
    shards: Option<std::ops::Range<usize>>,
    worker: Option<WorkerId>,
}

impl Preparation {
    /// One that begins in this turn.
    pub(super) fn new(saved: Option<Arc<Manifest>>, turn: u64) -> Self {
        Self {
            saved,
            listed: None,
            indexed: Vec::new(),
            tasks: BTreeMap::new(),
            waiting: BTreeSet::new(),
            turn,
            saving: None,
        }
    }

    fn add_task(&mut self, id: TaskId, shards: Option<std::ops::Range<usize>>) {
        self.tasks.insert(id, PendingTask { shards, worker: None });
        self.waiting.insert(id);
    }

    fn remove_task(&mut self, id: TaskId) {
        self.tasks.remove(&id);
        self.waiting.remove(&id);
    }

    /// Gives the next task to a worker.
    fn hand_out(&mut self, worker: WorkerId, turn: u64) -> Option<TaskId> {
        let id = self.waiting.pop_first()?;
        self.tasks.get_mut(&id)?.worker = Some(worker);
        self.turn = turn;
        Some(id)
    }

    /// (shards indexed, shards known).
    pub(super) fn progress(&self) -> (u64, u64) {
        match &self.saving {
            Some(manifest) => (manifest.shards.len() as u64, manifest.shards.len() as u64),
            None => (self.indexed.iter().flatten().count() as u64, self.indexed.len() as u64),
        }
    }
}

impl Cluster {
    /// Creates the tasks that are due and hands free ones to workers with room.
    pub(super) fn prepare(&mut self) {
        self.drop_dead_tasks();
        for preparation in self.preparations.values_mut() {
            let is_known = preparation.listed.is_some() || preparation.saving.is_some();
            if !is_known && preparation.tasks.is_empty() {
                let id = TaskId(self.next_task);
                self.next_task += 1;
                preparation.add_task(id, None);
            }
        }
        if self.preparations.values().any(|preparation| !preparation.waiting.is_empty()) {
            self.hand_out_tasks();
        }
    }

    /// Free tasks go to workers with room: those of tenants in turn, and of a tenant those of its jobs, so that a dataset of
    /// many shards holds up nobody else's.
    fn hand_out_tasks(&mut self) {
        let has_room = |worker: &TrackedWorker| {
            worker.known && !worker.draining && worker.tasks.len() < TASKS_PER_WORKER
        };
        let with_room = self.workers.iter().filter(|(_, worker)| has_room(worker));
        let mut free: BTreeSet<(usize, WorkerId)> =
            with_room.map(|(id, worker)| (worker.tasks.len(), *id)).collect();
        if free.is_empty() {
            return;
        }
        let mut turns = TenantRotation::new(self.turn);
        for (job, preparation) in &self.preparations {
            let Some(found) = self.jobs.get(job) else { continue };
            let waiting = preparation.waiting.len();
            let at_work = preparation.tasks.len() - waiting;
            turns.put(&found.spec.tenant, *job, at_work, waiting, preparation.turn);
        }
        while let Some((held, worker)) = free.pop_first() {
            let Some(job) = turns.next_job() else { break };
            let preparation = self.preparations.get_mut(&job);
            let handed = preparation.and_then(|preparation| preparation.hand_out(worker, turns.turn()));
            if let (Some(id), Some(found)) = (handed, self.workers.get_mut(&worker)) {
                found.tasks.insert(id);
                found.revision += 1;
            }
            if held + 1 < TASKS_PER_WORKER {
                free.insert((held + 1, worker));
            }
        }
        self.turn = turns.turn();
    }

    /// Takes tasks that nobody waits for any more from the workers that hold them.
    fn drop_dead_tasks(&mut self) {
        let preparations = &self.preparations;
        for worker in self.workers.values_mut() {
            let before = worker.tasks.len();
            worker.tasks.retain(|id| preparations.values().any(|known| known.tasks.contains_key(id)));
            worker.revision += u64::from(worker.tasks.len() < before);
        }
    }

    /// The tasks of a worker, in full.
    pub(super) fn tasks_of(&self, worker: &TrackedWorker) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (job, preparation) in &self.preparations {
            let Some(job) = self.jobs.get(job) else { continue };
            for (id, pending) in preparation.tasks.iter().filter(|(id, _)| worker.tasks.contains(id)) {
                let listed = preparation.listed.as_deref().unwrap_or_default();
                let shards = pending.shards.clone().map(|range| listed[range].to_vec());
                let reads = self.settings.tenants.reads_of(&job.spec.tenant).clone();
                tasks.push(Task { id: *id, source: job.spec.pipeline.source.clone(), shards, reads });
            }
        }
        tasks
    }

    /// A worker was lost: its tasks are free again.
    pub(super) fn return_tasks(&mut self, lost: &BTreeSet<TaskId>) {
        for preparation in self.preparations.values_mut() {
            for id in lost {
                if let Some(task) = preparation.tasks.get_mut(id) {
                    task.worker = None;
                    preparation.waiting.insert(*id);
                }
            }
        }
    }

    pub(super) fn on_task_results(&mut self, worker: WorkerId, results: Vec<TaskResult>, ready: &mut Ready) {
        for result in results {
            if let Some(found) = self.workers.get_mut(&worker)
                && found.tasks.remove(&result.id)
            {
                found.revision += 1;
            }
            let owner = self.preparations.iter().find_map(|(job, preparation)| {
                Some((*job, preparation.tasks.get(&result.id)?.shards.is_some()))
            });
            let Some((job, indexes)) = owner else { continue };
            match result.outcome {
                Ok(TaskOutput::Listed(shards)) if !indexes => self.on_listed(job, result.id, shards, ready),
                Ok(TaskOutput::Indexed(shards)) if indexes => self.on_indexed(job, result.id, shards, ready),
                // An answer to another question is none.
                Ok(_) => {}
                Err(message) => self.end_job(job, JobState::Failed(message), ready),
            }
        }
    }

    fn on_listed(&mut self, job: JobId, task: TaskId, shards: Vec<ShardRef>, ready: &mut Ready) {
        if let Err(message) = check_shards(shards.len()) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        preparation.remove_task(task);
        if let Some(saved) = preparation.saved.take() {
            match saved.check_unchanged(&shards) {
                Ok(()) => self.save_index(job, saved, ready),
                Err(message) => self.end_job(job, JobState::Failed(message), ready),
            }
            return;
        }
        preparation.indexed = vec![None; shards.len()];
        for range in task_ranges(&shards) {
            let id = TaskId(self.next_task);
            self.next_task += 1;
            preparation.add_task(id, Some(range));
        }
        preparation.listed = Some(shards);
        self.touch_job(job);
        self.finish_index(job, ready);
    }

    fn on_indexed(&mut self, job: JobId, task: TaskId, indexes: Vec<ShardIndex>, ready: &mut Ready) {
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        let Some(pending) = preparation.tasks.get(&task) else { return };
        let range = pending.shards.clone().unwrap_or_default();
        if range.len() != indexes.len() {
            let message = format!(
                "a worker indexed {} shards where it was asked for {}; run the same release on all hosts",
                indexes.len(),
                range.len()
            );
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        preparation.remove_task(task);
        for (place, index) in range.zip(indexes) {
            preparation.indexed[place] = Some(index);
        }
        self.touch_job(job);
        self.finish_index(job, ready);
    }

    fn finish_index(&mut self, job: JobId, ready: &mut Ready) {
        let Some(preparation) = self.preparations.get_mut(&job) else { return };
        if preparation.indexed.iter().any(Option::is_none) {
            return;
        }
        let listed = preparation.listed.take().unwrap_or_default();
        let indexes = std::mem::take(&mut preparation.indexed).into_iter().flatten();
        let shards: Vec<Shard> =
            listed.into_iter().zip(indexes).map(|(object, index)| Shard { object, index }).collect();
        let defect = first_defect(&shards);
        match Manifest::build(shards) {
            Ok(manifest) => self.save_index(job, Arc::new(manifest), ready),
            // Where nothing could be read, the first defect says more than that there are no rows.
            Err(message) => self.end_job(job, JobState::Failed(defect.unwrap_or(message)), ready),
        }
    }

    /// Has an index saved where every later leader finds it.
    fn save_index(&mut self, job: JobId, manifest: Arc<Manifest>, ready: &mut Ready) {
        let (Some(found), Some(preparation)) = (self.jobs.get(&job), self.preparations.get_mut(&job)) else {
            return;
        };
        let key = source_key(&found.spec.tenant, &found.spec.pipeline.source);
        ready.manifests.push((job, key, Arc::clone(&manifest)));
        preparation.saving = Some(manifest);
    }

    /// A job's index is saved, or cannot be: one sentence with the fix.
    pub(super) fn on_index_saved(&mut self, job: JobId, saved: Result<(), String>, ready: &mut Ready) {
        let preparation = self.preparations.get_mut(&job);
        let Some(manifest) = preparation.and_then(|preparation| preparation.saving.take()) else { return };
        match saved {
            Ok(()) => self.on_dataset(job, &manifest, ready),
            Err(message) => self.end_job(job, JobState::Failed(message), ready),
        }
    }

    /// The dataset is known: the job starts, unless pipeline and dataset do not go together.
    fn on_dataset(&mut self, job: JobId, manifest: &Manifest, ready: &mut Ready) {
        self.preparations.remove(&job);
        if let Err(message) = self.check_dataset(job, manifest) {
            self.end_job(job, JobState::Failed(message), ready);
            return;
        }
        self.record(Record::Ready { job, dataset: manifest.summary() }, ready);
        self.touch_job(job);
    }

    fn check_dataset(&self, job: JobId, manifest: &Manifest) -> Result<(), String> {
        let spec = &self.jobs[&job].spec;
        let dataset = manifest.summary();
        if let Some(defect) = first_defect(&manifest.shards)
            && spec.pipeline.on_error == OnError::Fail
        {
            return Err(defect);
        }
        infer(&spec.pipeline, &manifest.schema).map_err(|error| error.to_string())?;
        let passes = spec.pipeline.repeat_count();
        let pass_rows = spec.pipeline.pass_rows(&dataset);
        if let Some(empty) = dataset.part_rows.iter().position(|rows| *rows == 0) {
            return Err(format!("dataset {} of the mix has no rows; leave it out", empty + 1));
        }
        if pass_rows.checked_mul(u64::from(passes)).is_none() || pass_rows == u64::MAX {
            return Err(format!(
                "{passes} passes over {} rows are more rows than can be counted; use a smaller `repeat`",
                dataset.rows
            ));
        }
        let layout = Layout::new(&spec.pipeline, &dataset, spec.epochs, spec.virtual_consumers);
        let rounds = spec.pipeline.max_part_repeats(&dataset);
        if spec.epochs.checked_mul(layout.passes).and_then(|passes| passes.checked_mul(rounds)).is_none() {
            return Err(format!(
                "{} epochs of {} passes are more than {} passes over the dataset; ask for fewer epochs or a smaller `repeat`",
                spec.epochs,
                layout.passes,
                u32::MAX
            ));
        }
        if layout.total_splits().is_none() {
            return Err(format!(
                "{} epochs of {} rows are more than can be counted; ask for fewer epochs or a smaller `repeat`",
                spec.epochs,
                layout.epoch_rows()
            ));
        }
        if dataset.rows < u64::from(spec.virtual_consumers) {
            return Err(format!(
                "{} virtual consumers are more than the dataset's {} rows; use fewer consumers",
                spec.virtual_consumers, dataset.rows
            ));
        }
        if layout.dropped_rows() == layout.epoch_rows() {
            return Err(format!(
                "`remainder: drop` leaves nothing: {} rows are fewer than one batch of {} for each of {} consumers; use a smaller batch or `remainder: emit`",
                layout.epoch_rows(),
                layout.batch_rows,
                layout.streams
            ));
        }
        if let Some(start) = &spec.start {
            let fingerprint = spec.pipeline.fingerprint();
            start.check(&fingerprint, &dataset, spec.pipeline.order, &layout)?;
        }
        Ok(())
    }

    fn touch_job(&mut self, job: JobId) {
        if let Some(found) = self.jobs.get_mut(&job) {
            found.touch_all_consumers();
        }
    }
}

/// The first defect that indexing found.
fn first_defect(shards: &[Shard]) -> Option<String> {
    let (shard, defect) = shards.iter().find_map(|shard| Some((shard, shard.index.defects.first()?)))?;
    Some(format!(
        "{} at byte {}: {}; mend the shard, or set `on_error: skip` to leave out what follows in it",
        shard.object.url, defect.offset, defect.reason
    ))
}

fn check_shards(shards: usize) -> Result<(), String> {
    if shards > MOST_SHARDS {
        return Err(format!(
            "the source has {shards} shards, more than the {MOST_SHARDS} of a job; pack its rows into larger shards, or name fewer"
        ));
    }
    Ok(())
}

/// Cuts a listing into tasks.
fn task_ranges(shards: &[ShardRef]) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (place, shard) in shards.iter().enumerate() {
        bytes = bytes.saturating_add(shard.size_bytes);
        if bytes >= TASK_BYTES || place + 1 - start >= TASK_SHARDS {
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
    fn a_job_has_so_many_shards_at_most() {
        assert_eq!(check_shards(MOST_SHARDS), Ok(()));
        let said = check_shards(MOST_SHARDS + 1).expect_err("one too many");
        assert!(
            said.starts_with("the source has 10000001 shards, more than the 10000000 of a job;"),
            "{said}"
        );
    }
}
