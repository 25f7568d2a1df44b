//! The preparation of one dataset: listed and indexed shards, and unfinished tasks. The state is soft: a new leader starts
//! the preparation again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use feedline_data::growth::GrowthPartition;
use feedline_data::ids::{TaskId, WorkerId};
use feedline_data::manifest::{IndexedShard, Manifest, Shard, ShardChanges, ShardRef};
use feedline_data::messages::MAX_LOST_WORKERS;
use feedline_data::schema::Field;
use feedline_data::shared_vec::SharedVec;

use crate::SavedIndexes;

#[derive(Debug, Default)]
pub(crate) struct Preparation {
    /// The latest saved index, until it is compared with the listed shards.
    pub(crate) saved_index: Option<Arc<Manifest>>,
    /// The index that the start position refers to, if it is known.
    pub(crate) start_index: Option<Arc<Manifest>>,
    /// The shards that changed since the saved index.
    pub(crate) changes: ShardChanges,
    /// The index that the driver is saving.
    pub(crate) unsaved_index: Option<Arc<Manifest>>,
    /// The partitions of a new unbounded job, with their first offsets.
    pub(crate) partitions: Vec<GrowthPartition>,
    listed: Vec<ShardRef>,
    /// The numbers of the listed shards that tasks index.
    pending: Vec<usize>,
    indexed: Vec<Option<IndexedShard>>,
    /// The columns of a shard, which other shards share.
    columns: Option<SharedVec<Field>>,
    indexed_shards: usize,
    /// The sizes of the listed and of the indexed shards.
    total_bytes: u64,
    indexed_bytes: u64,
    tasks: BTreeMap<TaskId, PendingTask>,
    waiting: BTreeSet<TaskId>,
}

/// An unfinished task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingTask {
    /// The shards to index, as a range of the pending shards; `None` for the task that lists the shards.
    pub(crate) shards: Option<Range<usize>>,
    pub(crate) worker: Option<WorkerId>,
    /// The workers that were lost while they ran the task.
    pub(crate) lost: Vec<WorkerId>,
    /// The bytes of the shards that the worker has read.
    pub(crate) read_bytes: u64,
}

/// How far a preparation is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PreparationProgress {
    /// The number of indexed shards.
    pub(crate) indexed: u64,
    /// The number of listed shards.
    pub(crate) shards: u64,
    /// The size of the indexed shards and of the parts of others that were read.
    pub(crate) read_bytes: u64,
    /// The size of the listed shards.
    pub(crate) total_bytes: u64,
}

impl PendingTask {
    /// Whether the task runs alone, because it is a suspect.
    pub(crate) fn is_isolated(&self) -> bool {
        self.lost.len() + 1 >= MAX_LOST_WORKERS as usize
    }
}

impl Preparation {
    pub(crate) fn new(saved: SavedIndexes) -> Self {
        Self { saved_index: saved.latest, start_index: saved.of_start, ..Self::default() }
    }

    pub(crate) fn add_task(&mut self, id: TaskId, shards: Option<Range<usize>>, lost: Vec<WorkerId>) {
        let task = PendingTask { shards, worker: None, lost, read_bytes: 0 };
        if !task.is_isolated() {
            self.waiting.insert(id);
        }
        self.tasks.insert(id, task);
    }

    pub(crate) fn remove_task(&mut self, id: TaskId) -> Option<PendingTask> {
        self.waiting.remove(&id);
        self.tasks.remove(&id)
    }

    pub(crate) fn task(&self, id: TaskId) -> Option<&PendingTask> {
        self.tasks.get(&id)
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = (TaskId, &PendingTask)> {
        self.tasks.iter().map(|(id, task)| (*id, task))
    }

    /// Assigns the next waiting task to a worker.
    pub(crate) fn assign_task(&mut self, worker: WorkerId) -> Option<TaskId> {
        let id = self.waiting.pop_first()?;
        self.tasks.get_mut(&id)?.worker = Some(worker);
        Some(id)
    }

    /// Assigns a task that runs alone to a worker.
    pub(crate) fn assign_isolated_task(&mut self, id: TaskId, worker: WorkerId) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.worker = Some(worker);
        }
    }

    /// Returns a task of an expired worker to the waiting tasks.
    pub(crate) fn return_task(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(&id) {
            (task.worker, task.read_bytes) = (None, 0);
            if !task.is_isolated() {
                self.waiting.insert(id);
            }
        }
    }

    /// Records how many bytes a worker has read for its task.
    pub(crate) fn set_read_bytes(&mut self, id: TaskId, worker: WorkerId, bytes: u64) {
        if let Some(task) = self.tasks.get_mut(&id).filter(|task| task.worker == Some(worker)) {
            task.read_bytes = bytes;
        }
    }

    /// Sets the workers that were lost while they ran a task.
    pub(crate) fn set_lost(&mut self, id: TaskId, lost: Vec<WorkerId>) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.lost = lost;
        }
    }

    /// Whether a task waits until it can run alone.
    pub(crate) fn is_isolated(&self, id: TaskId) -> bool {
        self.tasks.get(&id).is_some_and(|task| task.is_isolated() && task.worker.is_none())
    }

    /// Withdraws the losses of a worker that reports again. Returns whether a task has such a loss.
    pub(crate) fn withdraw_loss(&mut self, worker: WorkerId) -> bool {
        let mut has_loss = false;
        for (id, task) in &mut self.tasks {
            let losses = task.lost.len();
            task.lost.retain(|lost| *lost != worker);
            has_loss |= task.lost.len() < losses;
            if task.worker.is_none() && !task.is_isolated() {
                self.waiting.insert(*id);
            }
        }
        has_loss
    }

    /// Returns the numbers of running and waiting tasks. Tasks that wait until they can run alone count as running.
    pub(crate) fn task_counts(&self) -> (usize, usize) {
        (self.tasks.len() - self.waiting.len(), self.waiting.len())
    }

    /// Sets the listed shards. `indexed` contains the index of each shard that is already known.
    pub(crate) fn set_listed(&mut self, shards: Vec<ShardRef>, indexed: Vec<Option<IndexedShard>>) {
        self.pending = (0..shards.len()).filter(|shard| indexed[*shard].is_none()).collect();
        self.indexed_shards = shards.len() - self.pending.len();
        self.total_bytes = total_bytes(shards.iter());
        let pending = self.pending.iter().map(|shard| &shards[*shard]);
        self.indexed_bytes = self.total_bytes - total_bytes(pending);
        self.indexed = indexed;
        self.listed = shards;
    }

    /// The shards that tasks index, in order.
    pub(crate) fn pending(&self, range: Range<usize>) -> Vec<ShardRef> {
        let numbers = self.pending.get(range).unwrap_or_default();
        numbers.iter().map(|number| self.listed[*number].clone()).collect()
    }

    /// The number of shards that tasks index.
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn set_indexes(&mut self, range: Range<usize>, mut indexes: Vec<IndexedShard>) {
        // Most shards have the columns of the first one.
        let schemas = indexes.iter_mut().filter_map(|shard| shard.index.schema.as_mut());
        let first = self.columns.iter_mut();
        SharedVec::share(first.chain(schemas.map(|schema| &mut schema.fields)));
        if self.columns.is_none() {
            let mut schemas = indexes.iter().filter_map(|shard| shard.index.schema.as_ref());
            self.columns = schemas.next().map(|schema| schema.fields.clone());
        }
        for (place, index) in range.zip(indexes) {
            let number = self.pending[place];
            if self.indexed[number].replace(index).is_none() {
                self.indexed_shards += 1;
                self.indexed_bytes = self.indexed_bytes.saturating_add(self.listed[number].size_bytes);
            }
        }
    }

    /// Returns all shards if all of them are indexed.
    pub(crate) fn take_shards(&mut self) -> Option<Vec<Shard>> {
        if self.indexed_shards < self.indexed.len() {
            return None;
        }
        let listed = std::mem::take(&mut self.listed).into_iter();
        let indexes = std::mem::take(&mut self.indexed).into_iter().flatten();
        self.indexed_shards = 0;
        let shard = |(object, IndexedShard { index, digest })| Shard { object, index, digest };
        Some(listed.zip(indexes).map(shard).collect())
    }

    /// How far the preparation is. A task may read some bytes twice, or bytes of other files.
    pub(crate) fn progress(&self) -> PreparationProgress {
        let total_bytes = self.total_bytes;
        if let Some(manifest) = &self.unsaved_index {
            let shards = manifest.shards.len() as u64;
            return PreparationProgress { indexed: shards, shards, read_bytes: total_bytes, total_bytes };
        }
        let running: u64 = self.tasks.values().map(|task| task.read_bytes).fold(0, u64::saturating_add);
        PreparationProgress {
            indexed: self.indexed_shards as u64,
            shards: self.indexed.len() as u64,
            read_bytes: self.indexed_bytes.saturating_add(running).min(total_bytes),
            total_bytes,
        }
    }
}

fn total_bytes<'a>(shards: impl Iterator<Item = &'a ShardRef>) -> u64 {
    shards.map(|shard| shard.size_bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::ShardIndex;

    use super::*;

    fn shard(number: usize) -> ShardRef {
        ShardRef {
            url: format!("file:///{number}"),
            size_bytes: 1,
            version: String::new(),
            ..ShardRef::default()
        }
    }

    fn index() -> IndexedShard {
        ShardIndex { blocks: Vec::new(), schema: None, defects: Vec::new(), ..ShardIndex::default() }.into()
    }

    #[test]
    fn tasks_wait_run_and_return() {
        let mut preparation = Preparation::new(SavedIndexes::default());
        preparation.add_task(TaskId(1), None, Vec::new());
        preparation.add_task(TaskId(2), Some(0..1), Vec::new());
        assert_eq!(preparation.task_counts(), (0, 2));
        assert_eq!(preparation.assign_task(WorkerId(7)), Some(TaskId(1)));
        let running =
            PendingTask { shards: None, worker: Some(WorkerId(7)), lost: Vec::new(), read_bytes: 0 };
        assert_eq!((preparation.task(TaskId(1)), preparation.task_counts()), (Some(&running), (1, 1)));
        preparation.return_task(TaskId(1));
        preparation.return_task(TaskId(9));
        assert_eq!((preparation.task_counts(), preparation.tasks().count()), ((0, 2), 2));
        assert_eq!(preparation.remove_task(TaskId(1)).map(|task| task.worker), Some(None));
        assert_eq!(preparation.assign_task(WorkerId(7)), Some(TaskId(2)));
        assert_eq!((preparation.assign_task(WorkerId(7)), preparation.task_counts()), (None, (1, 0)));
    }

    #[test]
    fn shards_are_complete_once_each_is_indexed() {
        let mut preparation = Preparation::new(SavedIndexes::default());
        preparation.set_listed((0..3).map(shard).collect(), vec![None; 3]);
        let counts =
            |preparation: &Preparation| (preparation.progress().indexed, preparation.progress().shards);
        assert_eq!((counts(&preparation), preparation.pending(1..3).len()), ((0, 3), 2));
        preparation.set_indexes(0..2, vec![index(); 2]);
        preparation.set_indexes(1..2, vec![index()]);
        assert_eq!((counts(&preparation), preparation.take_shards()), ((2, 3), None));
        preparation.set_indexes(2..3, vec![index()]);
        let shards = preparation.take_shards().expect("each is indexed");
        assert_eq!(
            shards.iter().map(|shard| shard.object.url.as_str()).collect::<Vec<_>>(),
            ["file:///0", "file:///1", "file:///2"]
        );
    }

    #[test]
    fn the_progress_contains_what_running_tasks_have_read() {
        let mut preparation = Preparation::new(SavedIndexes::default());
        let large = |number| ShardRef { size_bytes: 100, ..shard(number) };
        preparation.set_listed((0..3).map(large).collect(), vec![Some(index()), None, None]);
        let read = |preparation: &Preparation| preparation.progress().read_bytes;
        assert_eq!((read(&preparation), preparation.progress().total_bytes), (100, 300));
        preparation.add_task(TaskId(1), Some(0..2), Vec::new());
        preparation.assign_task(WorkerId(7));
        preparation.set_read_bytes(TaskId(1), WorkerId(8), 90);
        assert_eq!(read(&preparation), 100, "another worker has the task");
        preparation.set_read_bytes(TaskId(1), WorkerId(7), 50);
        assert_eq!(read(&preparation), 150);
        preparation.set_read_bytes(TaskId(1), WorkerId(7), 900);
        assert_eq!(read(&preparation), 300, "some bytes were read twice");
        preparation.return_task(TaskId(1));
        assert_eq!(read(&preparation), 100);
        preparation.set_indexes(0..2, vec![index(); 2]);
        assert_eq!(read(&preparation), 300);
    }

    #[test]
    fn only_shards_without_an_index_are_pending() {
        let mut preparation = Preparation::new(SavedIndexes::default());
        preparation.set_listed((0..4).map(shard).collect(), vec![Some(index()), None, Some(index()), None]);
        assert_eq!((preparation.progress().indexed, preparation.pending_len()), (2, 2));
        assert_eq!(preparation.pending(0..2), [shard(1), shard(3)]);
        preparation.set_indexes(1..2, vec![index()]);
        preparation.set_indexes(0..1, vec![index()]);
        let shards = preparation.take_shards().expect("each is indexed");
        assert!(shards.iter().map(|shard| shard.object.clone()).eq((0..4).map(shard)));
    }
}
