//! Lists and indexes datasets for the coordinator.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::ids::TaskId;
use feedline_data::messages::{Task, TaskOutput, TaskResult};
use feedline_sources::{Dataset, SourceError, Stores};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::metrics;

/// Maximum number of shards that one task indexes concurrently.
const MAX_CONCURRENT_SHARDS: usize = 4;

/// Runs the indexing tasks of the plan. Retains the result of a task while the plan contains the task.
pub(crate) struct IndexTasks {
    stores: Arc<Stores>,
    tracker: TaskTracker,
    /// The tasks of the plan, with the results of finished tasks.
    state: Mutex<BTreeMap<TaskId, Option<Result<TaskOutput, String>>>>,
    /// Notified when a task has finished.
    pub(crate) finished: Notify,
}

impl IndexTasks {
    pub(crate) fn new(stores: Arc<Stores>, tracker: TaskTracker) -> Arc<Self> {
        Arc::new(Self { stores, tracker, state: Mutex::default(), finished: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskId, Option<Result<TaskOutput, String>>>> {
        self.state.lock().expect("no thread panics while it holds the tasks")
    }

    /// Starts new tasks of the plan, and drops the results of tasks that the plan no longer contains.
    pub(crate) fn set_tasks(self: &Arc<Self>, tasks: Vec<Task>) {
        let mut state = self.lock();
        state.retain(|id, _| tasks.iter().any(|task| task.id == *id));
        for task in tasks {
            if let std::collections::btree_map::Entry::Vacant(entry) = state.entry(task.id) {
                entry.insert(None);
                let this = Arc::clone(self);
                self.tracker.spawn(async move { this.run(task).await });
            }
        }
    }

    /// The results of finished tasks.
    pub(crate) fn results(&self) -> Vec<TaskResult> {
        let state = self.lock();
        let finished = state.iter().filter_map(|(id, result)| Some((*id, result.clone()?)));
        finished.map(|(id, outcome)| TaskResult { id, outcome }).collect()
    }

    async fn run(&self, task: Task) {
        let id = task.id;
        let result = AssertUnwindSafe(self.execute(task)).catch_unwind().await;
        let crashed =
            |_| Err("the worker panicked while it indexed shards: please report this bug".to_owned());
        let outcome = result.map_or_else(crashed, |result| result.map_err(|error| error.to_string()));
        metrics::count_task();
        if let Some(slot) = self.lock().get_mut(&id) {
            *slot = Some(outcome);
        }
        self.finished.notify_one();
    }

    async fn execute(&self, task: Task) -> Result<TaskOutput, SourceError> {
        let dataset = Dataset::of_tenant(task.source, Arc::clone(&self.stores), &task.reads)?;
        let Some(shards) = task.shards else { return Ok(TaskOutput::Listed(dataset.list().await?)) };
        let dataset = &dataset;
        let reads = shards.into_iter().map(|shard| async move { dataset.index_shard(&shard).await });
        let indexes = futures::stream::iter(reads).buffered(MAX_CONCURRENT_SHARDS);
        Ok(TaskOutput::Indexed(indexes.try_collect().await?))
    }
}
