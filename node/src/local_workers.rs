//! Workers in this process: starting, draining and stopping them, and the split of the process's resources.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use feedline_proto::CoordinatorService;
use feedline_worker::{
    FunctionSettings, MOST_FETCHES, ObjectAccess, ProcessClock, RowCacheSettings, RunningWorker,
    StoreCacheSettings, WorkerSettings,
};
use tokio::time::Instant;

use crate::cli::{LocalArgs, SwitchArg};
use crate::coordinator_contact::{CoordinatorContact, CountingCoordinator};
use crate::failure::{Failure, reason};
use crate::{entropy, environment};

/// How often a draining worker is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Measures this process, whatever workers run in it.
static CLOCK: LazyLock<Arc<ProcessClock>> = LazyLock::new(ProcessClock::new);
/// Time to stop after draining.
const STOP: Duration = Duration::from_secs(10);

/// What one worker may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalWorkerShare {
    /// Threads that run operators.
    pub(crate) cores: u32,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known, or nothing crosses it.
    pub(crate) nic_bytes_per_s: u64,
    /// Memory budget.
    pub(crate) memory_bytes: u64,
    /// Directory of indexes that are kept between runs.
    pub(crate) cache_dir: Option<PathBuf>,
    /// Where rows are kept between runs.
    pub(crate) row_cache: Option<RowCacheSettings>,
    /// Where rows are kept for all workers.
    pub(crate) store_cache: Option<StoreCacheSettings>,
    /// Fetches that may be open at once.
    pub(crate) most_fetches: u32,
    /// With what Python functions of pipelines are run, where they are.
    pub(crate) functions: Option<FunctionSettings>,
    /// Whether operators are measured.
    pub(crate) trace: bool,
}

/// Splits the process's resources over its workers; the first ones have the cores that are left over.
pub(crate) fn shares(args: &LocalArgs) -> Result<Vec<LocalWorkerShare>, Failure> {
    let cache_dir = args.cache.cache_dir.clone().map_or_else(environment::cache_dir, Ok)?;
    let cores = args.cores.unwrap_or_else(environment::cores);
    let memory_bytes = args.memory.unwrap_or_else(environment::default_memory_bytes);
    let share = |worker| LocalWorkerShare {
        cores: (cores / args.workers + u32::from(worker < cores % args.workers)).max(1),
        // They share it with each other, and with consumers of this machine need none of it.
        nic_bytes_per_s: 0,
        memory_bytes: (memory_bytes / u64::from(args.workers)).max(1),
        // The coordinator of this process has the indexes.
        cache_dir: None,
        row_cache: Some(args.cache.rows(&cache_dir, args.workers, args.cache.cache_dir.is_some())),
        store_cache: args.cache.store(),
        most_fetches: MOST_FETCHES,
        functions: args.functions.settings(SwitchArg::On),
        trace: args.trace.is_on(),
    };
    Ok((0..args.workers).map(share).collect())
}

/// A worker and its contact to the coordinator.
pub(crate) struct LocalWorker {
    /// The worker.
    pub(crate) running: RunningWorker,
    /// Whether its coordinator answers.
    pub(crate) contact: Arc<CoordinatorContact>,
}

/// Starts a worker that consumers find at `address`. Where it shows its coordinator who it is, it gives rows with tickets
/// only.
pub(crate) fn start(
    address: String,
    share: LocalWorkerShare,
    access: ObjectAccess,
    (coordinator, asks_for_tickets): (Arc<dyn CoordinatorService>, bool),
) -> Result<LocalWorker, Failure> {
    let settings = WorkerSettings {
        address,
        machine: environment::machine(),
        nic_bytes_per_s: share.nic_bytes_per_s,
        cores: share.cores,
        memory_bytes: share.memory_bytes,
        access,
        cache_dir: share.cache_dir,
        row_cache: share.row_cache,
        store_cache: share.store_cache,
        most_fetches: share.most_fetches,
        asks_for_tickets,
        functions: share.functions,
        trace: share.trace,
    };
    let contact = Arc::new(CoordinatorContact::default());
    let watched = Arc::new(CountingCoordinator { coordinator, contact: Arc::clone(&contact) });
    let running = feedline_worker::start(entropy::worker_id(), settings, Arc::clone(&CLOCK), watched)
        .map_err(|error| {
            Failure::failed(format!(
                "cannot start {} worker threads: {}; lower --cores",
                share.cores,
                reason(&error)
            ))
        })?;
    Ok(LocalWorker { running, contact })
}

impl LocalWorker {
    /// Takes no new splits and waits until those it holds are served, or nobody will come for them, or `grace` is over.
    pub(crate) async fn drain(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.running.drain();
        // The answer under way may still bring leases; the one after it knows that the worker drains.
        let told = self.contact.answers() + 2;
        loop {
            let gone = !self.contact.is_held();
            if gone || (self.running.is_idle() && self.contact.answers() >= told) {
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!(
                    "the worker still held splits after its grace time; others compute them again"
                );
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops, in bounded time.
    pub(crate) async fn stop(self) {
        if tokio::time::timeout(STOP, self.running.shutdown()).await.is_err() {
            tracing::warn!("the worker did not stop in time; its work is abandoned");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{CacheArgs, FunctionArgs, StoreArgs};

    #[test]
    fn resources_are_split_evenly() {
        let args = LocalArgs {
            workers: 3,
            cores: Some(8),
            memory: Some(900),
            index_dir: None,
            cache: CacheArgs::default(),
            auto_cache: SwitchArg::On,
            stores: StoreArgs::default(),
            functions: FunctionArgs::default(),
            trace: SwitchArg::On,
        };
        let cores: Vec<u32> = shares(&args).unwrap().iter().map(|share| share.cores).collect();
        assert_eq!(cores, [3, 3, 2]);
        assert!(shares(&args).unwrap().iter().all(|share| share.memory_bytes == 300));
        let args = LocalArgs {
            workers: 3,
            cores: Some(1),
            memory: None,
            index_dir: None,
            cache: CacheArgs::default(),
            auto_cache: SwitchArg::On,
            stores: StoreArgs::default(),
            functions: FunctionArgs::default(),
            trace: SwitchArg::On,
        };
        assert!(shares(&args).unwrap().iter().all(|share| share.cores == 1 && share.memory_bytes > 0));
    }
}
