//! Lists and indexes datasets for the coordinator.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use feedline_data::ids::TaskId;
use feedline_data::messages::{Task, TaskOutput, TaskProgress, TaskResult};
use feedline_data::pipeline::Source;
use feedline_data::tenants::TenantReads;
use feedline_sources::{Dataset, SourceError, Stores};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Notify;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::metrics;
use crate::shard_filter;

/// Minimum number of shards that one task indexes concurrently on a worker with enough memory, because the store needs some time for each
/// read.
const MIN_CONCURRENT_SHARDS: usize = 4;
/// Memory for indexing one shard.
const SHARD_BYTES: u64 = 16 << 20;

/// Maximum number of datasets of tasks.
const MAX_DATASETS: usize = 4;
/// Time after which a dataset that no task has used is dropped. Unbounded jobs list their topics several times per second.
const UNUSED_DATASET_TIME: Duration = Duration::from_secs(60);

/// Runs the indexing tasks of the plan. Retains the result of a task while the plan contains the task.
pub(crate) struct IndexTasks {
    stores: Arc<Stores>,
    tracker: TaskTracker,
    /// Maximum number of shards that one task indexes concurrently.
    concurrent_shards: usize,
    /// The tasks of the plan, with the results of finished tasks.
    state: Mutex<BTreeMap<TaskId, Option<Result<TaskOutput, String>>>>,
    /// The bytes that each running task has read.
    read_bytes: Mutex<BTreeMap<TaskId, Arc<AtomicU64>>>,
    /// The datasets of the last tasks, which cache indexes of directories and hold connections to Kafka brokers.
    datasets: Mutex<Vec<TaskDataset>>,
    /// Notified when a task has finished.
    pub(crate) finished: Notify,
}

/// The dataset of a source, with the permissions of a tenant.
struct TaskDataset {
    source: Source,
    reads: TenantReads,
    dataset: Arc<Dataset>,
    used_at: Instant,
}

impl IndexTasks {
    /// Runs tasks on a worker with these cores and this memory. A worker runs two tasks at a time, so each of them uses half of the cores.
    pub(crate) fn new(stores: Arc<Stores>, tracker: TaskTracker, cores: u32, memory_bytes: u64) -> Arc<Self> {
        let (state, datasets) = (Mutex::default(), Mutex::default());
        let most = usize::try_from(memory_bytes / SHARD_BYTES).unwrap_or(usize::MAX).max(1);
        let concurrent_shards = (cores.div_ceil(2) as usize).max(MIN_CONCURRENT_SHARDS).min(most);
        let (read_bytes, finished) = (Mutex::default(), Notify::new());
        Arc::new(Self { stores, tracker, concurrent_shards, state, read_bytes, datasets, finished })
    }

    /// Returns the dataset of a task, which other tasks of the same source share.
    fn dataset(&self, task: &Task) -> Result<Arc<Dataset>, SourceError> {
        let mut datasets = self.datasets.lock().expect("no thread panics while it holds the datasets");
        let used_at = Instant::now();
        let mut all = datasets.iter_mut();
        if let Some(found) = all.find(|found| found.source == task.source && found.reads == task.reads) {
            found.used_at = used_at;
            return Ok(Arc::clone(&found.dataset));
        }
        let (source, reads) = (task.source.clone(), task.reads.clone());
        let dataset = Arc::new(Dataset::of_tenant(source.clone(), Arc::clone(&self.stores), &reads)?);
        if datasets.len() >= MAX_DATASETS {
            datasets.remove(0);
        }
        datasets.push(TaskDataset { source, reads, dataset: Arc::clone(&dataset), used_at });
        Ok(dataset)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskId, Option<Result<TaskOutput, String>>>> {
        self.state.lock().expect("no thread panics while it holds the tasks")
    }

    /// Starts new tasks of the plan, and drops the results of tasks that the plan no longer contains.
    pub(crate) fn set_tasks(self: &Arc<Self>, tasks: Vec<Task>) {
        self.datasets
            .lock()
            .expect("no thread panics while it holds the datasets")
            .retain(|dataset| dataset.used_at.elapsed() < UNUSED_DATASET_TIME);
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

    /// How far the running tasks are.
    pub(crate) fn progress(&self) -> Vec<TaskProgress> {
        let running = self.lock_read_bytes();
        let progress = |(id, bytes): (&TaskId, &Arc<AtomicU64>)| TaskProgress {
            id: *id,
            read_bytes: bytes.load(Ordering::Relaxed),
        };
        running.iter().map(progress).collect()
    }

    fn lock_read_bytes(&self) -> MutexGuard<'_, BTreeMap<TaskId, Arc<AtomicU64>>> {
        self.read_bytes.lock().expect("no thread panics while it holds the counters")
    }

    async fn run(&self, task: Task) {
        let (id, read_bytes) = (task.id, Arc::<AtomicU64>::default());
        self.lock_read_bytes().insert(id, Arc::clone(&read_bytes));
        let result = AssertUnwindSafe(self.execute(task, read_bytes)).catch_unwind().await;
        self.lock_read_bytes().remove(&id);
        let crashed =
            |_| Err("the worker panicked while it indexed shards: please report this bug".to_owned());
        let outcome = result.map_or_else(crashed, |result| result.map_err(|error| error.to_string()));
        metrics::count_task();
        if let Some(slot) = self.lock().get_mut(&id) {
            *slot = Some(outcome);
        }
        self.finished.notify_one();
    }

    async fn execute(&self, task: Task, read_bytes: Arc<AtomicU64>) -> Result<TaskOutput, SourceError> {
        let dataset = self.dataset(&task)?;
        if task.lists_growth {
            return match dataset.list_growth().await {
                Ok(listed) => Ok(TaskOutput::Listed(listed)),
                Err(error) if error.is_retryable() => Ok(TaskOutput::Unavailable(error.to_string())),
                Err(error) => Err(error),
            };
        }
        let Some(shards) = task.shards else {
            let mut listed = shard_filter::exclude(dataset.list().await?, &task.source)?;
            listed.extend(dataset.list_graph().await?);
            return Ok(TaskOutput::Listed(listed));
        };
        let reads = shards.into_iter().map(|shard| {
            let (dataset, read_bytes) = (Arc::clone(&dataset), Arc::clone(&read_bytes));
            // Each shard is a task of its own, so that several cores decompress and parse.
            let index = AbortOnDropHandle::new(tokio::spawn(async move {
                dataset.index_shard_with_progress(&shard, read_bytes).await
            }));
            index.map(|indexed| match indexed.map_err(JoinError::try_into_panic) {
                Ok(indexed) => indexed,
                Err(Ok(panic)) => resume_unwind(panic),
                Err(Err(error)) => panic!("the runtime is shut down: {error}"),
            })
        });
        let indexes = futures::stream::iter(reads).buffered(self.concurrent_shards);
        Ok(TaskOutput::Indexed(indexes.try_collect().await?))
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::pipeline::Format;

    use super::*;

    fn task(id: u64, url: &str) -> Task {
        let source = Source::new(Format::Mds, url);
        Task {
            id: TaskId(id),
            source,
            reads: TenantReads::default(),
            shards: Some(Vec::new()),
            lists_growth: false,
        }
    }

    #[test]
    fn the_cores_and_the_memory_limit_the_shards_at_a_time() {
        for (cores, mib, expected) in [(1, 1024, 4), (64, 16 << 10, 32), (64, 160, 10), (2, 8, 1)] {
            let tasks = IndexTasks::new(Stores::new(Vec::new()), TaskTracker::new(), cores, mib << 20);
            assert_eq!(tasks.concurrent_shards, expected, "{cores} cores, {mib} MiB");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_shards_of_a_task_are_indexed_in_order() {
        let folder = tempfile::tempdir().expect("a directory");
        for number in 0..20 {
            let text = "line\n".repeat(1 + number);
            std::fs::write(folder.path().join(format!("{number:02}.txt")), text).expect("writable");
        }
        let url = format!("{}/*", folder.path().display());
        let task = Task { source: Source::new(Format::Text, url), ..task(1, "") };
        let tasks = IndexTasks::new(Stores::new(Vec::new()), TaskTracker::new(), 8, 1 << 30);
        let listed = tasks
            .execute(Task { shards: None, ..task.clone() }, Arc::default())
            .await
            .expect("the files can be listed");
        let TaskOutput::Listed(shards) = listed else { panic!("{listed:?}") };
        let (size_bytes, read_bytes) =
            (shards.iter().map(|shard| shard.size_bytes).sum::<u64>(), Arc::<AtomicU64>::default());
        let task = Task { shards: Some(shards), ..task };
        let indexed = tasks.execute(task, Arc::clone(&read_bytes)).await.expect("the files can be read");
        assert_eq!(read_bytes.load(Ordering::Relaxed), size_bytes);
        let TaskOutput::Indexed(indexed) = indexed else { panic!("{indexed:?}") };
        let rows: Vec<u64> = indexed.iter().map(|shard| shard.index.rows()).collect();
        assert_eq!(rows, (1..=20).collect::<Vec<u64>>());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_a_source_share_a_dataset_until_it_is_unused() {
        let tasks = IndexTasks::new(Stores::new(Vec::new()), TaskTracker::new(), 2, 64 << 20);
        let dataset = |id, url: &str| tasks.dataset(&task(id, url)).expect("a valid source");
        let first = dataset(1, "/a");
        assert!(Arc::ptr_eq(&first, &dataset(2, "/a")));
        assert!(!Arc::ptr_eq(&first, &dataset(3, "/b")));
        for other in 0..MAX_DATASETS as u64 {
            dataset(4 + other, &format!("/{other}"));
        }
        assert_eq!(tasks.datasets.lock().expect("no thread panicked").len(), MAX_DATASETS);
        let last = dataset(8, "/a");
        tokio::time::advance(UNUSED_DATASET_TIME / 2).await;
        tasks.set_tasks(Vec::new());
        assert!(Arc::ptr_eq(&last, &dataset(9, "/a")));
        tokio::time::advance(UNUSED_DATASET_TIME).await;
        tasks.set_tasks(Vec::new());
        assert!(!Arc::ptr_eq(&last, &dataset(10, "/a")));
    }
}
