//! Workers in this process: their settings, and starting, draining and stopping them.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use feedline_common::files::create_private_folder;
use feedline_proto::CoordinatorService;
use feedline_worker::{DEFAULT_MAX_FETCHES, ObjectAccess, ProcessClock, RunningWorker, WorkerSettings};
use tokio::time::Instant;

use crate::cli::{LocalArgs, SwitchArg};
use crate::coordinator_contact::{ContactRecorder, CoordinatorContact};
use crate::failure::{Failure, reason};
use crate::{entropy, environment};

/// Interval between checks of a draining worker.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// Measures the CPU time of this process, which all its workers share.
static PROCESS_CLOCK: LazyLock<Arc<ProcessClock>> = LazyLock::new(ProcessClock::new);
/// Timeout for stopping a worker after draining.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Divides the resources of this process among its workers, and returns their settings without addresses. If the cores
/// cannot be divided evenly, the first workers receive one more core.
pub(crate) fn settings(args: &LocalArgs, access: &ObjectAccess) -> Result<Vec<WorkerSettings>, Failure> {
    let cache_dir = args.cache.cache_dir.clone().map_or_else(environment::cache_dir, Ok)?;
    let cores = args.cores.unwrap_or_else(environment::default_cores);
    let memory_bytes = environment::memory_budget_bytes(args.memory)?;
    let graph_memory_bytes = environment::graph_memory_bytes(args.graph_memory, memory_bytes)?;
    let share_of = |bytes: u64| (bytes / u64::from(args.workers)).max(1);
    let settings = |worker| WorkerSettings {
        address: String::new(),
        tls_name: None,
        pool: args.pool.pool.clone(),
        machine: environment::cpu_model(),
        // The workers share the network of the machine, and consumers on the machine do not use it.
        nic_bytes_per_s: 0,
        cores: (cores / args.workers + u32::from(worker < cores % args.workers)).max(1),
        memory_bytes: share_of(memory_bytes),
        graph_memory_bytes: share_of(graph_memory_bytes),
        graph_disk: args.cache.graph_disk(Some(&cache_dir), args.workers),
        access: access.clone(),
        // The coordinator in this process stores the indexes.
        cache_dir: None,
        row_cache: Some(args.cache.disk_cache(&cache_dir, args.workers, args.cache.cache_dir.is_some())),
        store_cache: args.cache.store_cache(),
        max_fetches: DEFAULT_MAX_FETCHES,
        requires_tickets: false,
        functions: args.functions.settings(SwitchArg::On),
        trace: args.trace.is_on(),
    };
    Ok((0..args.workers).map(settings).collect())
}

/// Creates the cache directory if it is missing and checks that it is writable, before a worker starts.
pub(crate) fn check_cache_dir(folder: &Path) -> Result<(), Failure> {
    let usable = create_private_folder(folder).and_then(|()| tempfile::tempfile_in(folder));
    usable.map(drop).map_err(|error| {
        let folder = folder.display();
        Failure::failed(format!(
            "cannot write to the cache directory {folder}: {}; pass a writable --cache-dir",
            reason(&error)
        ))
    })
}

/// A worker and its contact with the coordinator.
pub(crate) struct LocalWorker {
    /// The worker.
    pub(crate) running: RunningWorker,
    /// Whether its coordinator answers.
    pub(crate) contact: Arc<CoordinatorContact>,
}

/// Starts a worker.
pub(crate) fn start(
    settings: WorkerSettings,
    coordinator: Arc<dyn CoordinatorService>,
) -> Result<LocalWorker, Failure> {
    let contact = Arc::new(CoordinatorContact::default());
    let coordinator = Arc::new(ContactRecorder { coordinator, contact: Arc::clone(&contact) });
    let cores = settings.cores;
    let running =
        feedline_worker::start(entropy::worker_id(), settings, Arc::clone(&PROCESS_CLOCK), coordinator)
            .map_err(|error| {
                Failure::failed(format!(
                    "cannot start {cores} worker threads: {}; lower --cores",
                    reason(&error)
                ))
            })?;
    Ok(LocalWorker { running, contact })
}

impl LocalWorker {
    /// Stops accepting new splits, and waits until all computed splits are served, the coordinator is lost, or `grace`
    /// has passed.
    pub(crate) async fn drain(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.running.drain();
        // The next answer may still contain leases. The coordinator sends the second answer after it has received the
        // drain request.
        let answers = self.contact.answers() + 2;
        loop {
            let is_lost = !self.contact.is_connected();
            if is_lost || (self.running.is_idle() && self.contact.answers() >= answers) {
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!("splits remain after the grace period; other workers will recompute them");
                return;
            }
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    }

    /// Stops the worker within a bounded time.
    pub(crate) async fn stop(self) {
        if tokio::time::timeout(STOP_TIMEOUT, self.running.shutdown()).await.is_err() {
            tracing::warn!("the worker did not stop before the timeout; its remaining work is discarded");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Cli, Command};
    use crate::memory_size::MemorySize;

    #[test]
    fn resources_are_divided_evenly_among_workers() {
        let args = LocalArgs {
            workers: 3,
            cores: Some(8),
            memory: Some(MemorySize::Bytes(900)),
            ..LocalArgs::default()
        };
        let workers = settings(&args, &ObjectAccess::default()).unwrap();
        assert_eq!(workers.iter().map(|worker| worker.cores).collect::<Vec<_>>(), [3, 3, 2]);
        assert!(workers.iter().all(|worker| (worker.memory_bytes, worker.graph_memory_bytes) == (300, 150)));
        let args = LocalArgs { workers: 3, cores: Some(1), ..LocalArgs::default() };
        let workers = settings(&args, &ObjectAccess::default()).unwrap();
        assert!(workers.iter().all(|worker| worker.cores == 1 && worker.memory_bytes > 0));
        assert!(workers.iter().all(|worker| worker.pool.is_empty()));
    }

    #[test]
    fn all_workers_of_a_command_are_in_its_pool() {
        let local = |words: &[&str]| match cli::parse::<Cli>(words).unwrap().args.command {
            Command::Run(args) => args.local,
            Command::Index(args) => args.local,
            Command::Up(args) => args.local,
            _ => panic!("the command has workers in its process"),
        };
        for words in
            [&["feedline", "run", "p.yaml"][..], &["feedline", "index", "p.yaml"], &["feedline", "up"]]
        {
            let args = local(&[words, &["--pool", "spot", "--workers", "2"]].concat());
            let workers = settings(&args, &ObjectAccess::default()).unwrap();
            assert_eq!(
                workers.iter().map(|worker| &*worker.pool).collect::<Vec<_>>(),
                ["spot"; 2],
                "{words:?}"
            );
        }
    }
}
