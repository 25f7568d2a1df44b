//! The preparation of one dataset: listed and indexed shards, and unfinished tasks. The state is soft: a new leader starts
//! the preparation again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use feedline_data::ids::{TaskId, WorkerId};
use feedline_data::manifest::{Manifest, Shard, ShardIndex, ShardRef};

#[derive(Debug, Default)]
pub(crate) struct Preparation {
    /// The saved index, until it is compared with the listed shards.
    pub(crate) saved_index: Option<Arc<Manifest>>,
    /// The index that the driver is saving.
    pub(crate) unsaved_index: Option<Arc<Manifest>>,
    listed: Vec<ShardRef>,
    indexed: Vec<Option<ShardIndex>>,
    indexed_shards: usize,
    tasks: BTreeMap<TaskId, PendingTask>,
    waiting: BTreeSet<TaskId>,
}

/// An unfinished task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingTask {
    /// The shards to index, as a range of the listed shards; `None` for the task that lists the shards.
    pub(crate) shards: Option<Range<usize>>,
    pub(crate) worker: Option<WorkerId>,
}

impl Preparation {
    pub(crate) fn new(saved_index: Option<Arc<Manifest>>) -> Self {
        Self { saved_index, ..Self::default() }
    }

    pub(crate) fn add_task(&mut self, id: TaskId, shards: Option<Range<usize>>) {
        self.tasks.insert(id, PendingTask { shards, worker: None });
        self.waiting.insert(id);
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

    /// Returns a task of a lost worker to the waiting tasks.
    pub(crate) fn return_task(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.worker = None;
            self.waiting.insert(id);
        }
    }

    /// Returns the numbers of running and waiting tasks.
    pub(crate) fn task_counts(&self) -> (usize, usize) {
        (self.tasks.len() - self.waiting.len(), self.waiting.len())
    }

    pub(crate) fn set_listed(&mut self, shards: Vec<ShardRef>) {
        self.indexed = vec![None; shards.len()];
        self.indexed_shards = 0;
        self.listed = shards;
    }

    pub(crate) fn listed(&self, range: Range<usize>) -> Vec<ShardRef> {
        self.listed.get(range).map(<[ShardRef]>::to_vec).unwrap_or_default()
    }

    pub(crate) fn set_indexes(&mut self, range: Range<usize>, indexes: Vec<ShardIndex>) {
        for (place, index) in range.zip(indexes) {
            if self.indexed[place].replace(index).is_none() {
                self.indexed_shards += 1;
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
        Some(listed.zip(indexes).map(|(object, index)| Shard { object, index }).collect())
    }

    /// Returns the numbers of indexed and listed shards.
    pub(crate) fn progress(&self) -> (u64, u64) {
        match &self.unsaved_index {
            Some(manifest) => (manifest.shards.len() as u64, manifest.shards.len() as u64),
            None => (self.indexed_shards as u64, self.indexed.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(number: usize) -> ShardRef {
        ShardRef { url: format!("file:///{number}"), size_bytes: 1, version: String::new(), part: 0 }
    }

    fn index() -> ShardIndex {
        ShardIndex { blocks: Vec::new(), schema: None, defects: Vec::new() }
    }

    #[test]
    fn tasks_wait_run_and_return() {
        let mut preparation = Preparation::new(None);
        preparation.add_task(TaskId(1), None);
        preparation.add_task(TaskId(2), Some(0..1));
        assert_eq!(preparation.task_counts(), (0, 2));
        assert_eq!(preparation.assign_task(WorkerId(7)), Some(TaskId(1)));
        let running = PendingTask { shards: None, worker: Some(WorkerId(7)) };
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
        let mut preparation = Preparation::new(None);
        preparation.set_listed((0..3).map(shard).collect());
        assert_eq!((preparation.progress(), preparation.listed(1..3).len()), ((0, 3), 2));
        preparation.set_indexes(0..2, vec![index(); 2]);
        preparation.set_indexes(1..2, vec![index()]);
        assert_eq!((preparation.progress(), preparation.take_shards()), ((2, 3), None));
        preparation.set_indexes(2..3, vec![index()]);
        let shards = preparation.take_shards().expect("each is indexed");
        assert_eq!(
            shards.iter().map(|shard| shard.object.url.as_str()).collect::<Vec<_>>(),
            ["file:///0", "file:///1", "file:///2"]
        );
    }
}
