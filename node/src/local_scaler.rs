//! Starts and stops worker processes on this host, as the plan requests, for `feedline up --autoscale`.
//!
//! A worker process runs as long as its standard input is open. When this process closes the input or exits, the worker
//! drains and exits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use feedline_access::{BearerToken, ProtectedFiles};
use feedline_common::backoff::Backoff;
use feedline_common::child_processes::start_child;
use feedline_coordinator::{PoolChange, PoolLimits, Scaler};
use feedline_worker::WorkerSettings;
use tokio::process::{ChildStdin, Command};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::reason;

/// Minimum run time of a successful start. A worker that exits earlier has failed to start.
const MIN_RUN_TIME: Duration = Duration::from_secs(5);
/// Pauses after failed starts.
const START_BACKOFF: Backoff = Backoff::from_millis(1_000, 60_000);

/// The command line of each worker process.
#[derive(Debug)]
pub(crate) struct WorkerCommand {
    /// Path of this program.
    pub(crate) program: PathBuf,
    /// URL of the coordinator.
    pub(crate) coordinator: String,
    /// Address to listen on, with port 0.
    pub(crate) listen: String,
    /// Settings of one worker.
    pub(crate) settings: WorkerSettings,
    /// Time to serve computed splits during shutdown.
    pub(crate) grace: Duration,
    /// Host at which consumers reach the worker [default: the address that it listens on].
    pub(crate) advertise: Option<String>,
    /// Token for the coordinator, if the cluster uses tokens.
    pub(crate) token: Option<BearerToken>,
    /// Files that no pipeline may read.
    pub(crate) own_files: ProtectedFiles,
    /// Flags of this process that each worker process receives unchanged.
    pub(crate) forwarded: Vec<OsString>,
}

/// Starts and drains worker processes.
#[derive(Debug)]
pub(crate) struct LocalScaler {
    command: WorkerCommand,
    min_workers: u32,
    max_workers: u32,
    state: Arc<Mutex<ScalerState>>,
    /// Notified when a worker exits.
    exited: Arc<Notify>,
}

#[derive(Debug)]
struct ScalerState {
    /// Workers that are not draining, the oldest first.
    workers: Vec<WorkerProcess>,
    /// Number of running processes, including those that are draining.
    running: usize,
    next_number: u64,
    backoff: Backoff,
    /// Earliest time of the next start, after a failed start.
    not_before: Option<Instant>,
    /// Whether the scaler has stopped starting workers.
    is_closed: bool,
}

#[derive(Debug)]
struct WorkerProcess {
    number: u64,
    /// Dropping the input makes the worker drain and exit.
    _input: ChildStdin,
}

impl ScalerState {
    fn new() -> Self {
        Self {
            workers: Vec::new(),
            running: 0,
            next_number: 0,
            backoff: START_BACKOFF,
            not_before: None,
            is_closed: false,
        }
    }

    fn is_backing_off(&self) -> bool {
        self.not_before.is_some_and(|time| Instant::now() < time)
    }

    /// Updates the backoff after an unexpected exit.
    fn on_exit(&mut self, run_time: Duration) {
        if self.is_backing_off() {
            // Workers that started together also fail together. Count this as one failure.
        } else if run_time < MIN_RUN_TIME {
            self.not_before = Some(Instant::now() + self.backoff.next_pause());
        } else {
            self.backoff.reset();
            self.not_before = None;
        }
    }
}

impl LocalScaler {
    /// Creates a scaler without workers. `bounds` are the smallest and the largest number of workers.
    pub(crate) fn new(command: WorkerCommand, bounds: (u32, u32)) -> Self {
        let (min_workers, max_workers) = bounds;
        let state = Arc::new(Mutex::new(ScalerState::new()));
        Self { command, min_workers, max_workers, state, exited: Arc::default() }
    }

    /// Sets the token for the coordinator.
    pub(crate) fn with_token(mut self, token: BearerToken) -> Self {
        self.command.token = Some(token);
        self
    }

    /// Makes all workers drain, and waits until they exit or the deadline passes.
    pub(crate) async fn shutdown(&self, deadline: Instant) {
        {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.workers.clear();
        }
        let all_exited = async {
            loop {
                let exited = self.exited.notified();
                if lock(&self.state).running == 0 {
                    return;
                }
                exited.await;
            }
        };
        if tokio::time::timeout_at(deadline, all_exited).await.is_err() {
            tracing::warn!("some workers did not exit before the deadline; they exit after draining");
        }
    }

    /// Builds the command line of a worker process.
    fn build_command(&self) -> Command {
        let WorkerCommand { program, coordinator, listen, settings, grace, .. } = &self.command;
        let WorkerCommand { advertise, token, own_files, forwarded, .. } = &self.command;
        let mut command = Command::new(program);
        command.args(["worker", "--while-input", "--coordinator", coordinator, "--listen", listen]);
        command.args(forwarded);
        if let Some(host) = advertise {
            command.args(["--advertise-host", host]);
        }
        // Workers must not inherit the credentials of this process, or the secret of its coordinator. A flag sets the pool.
        for name in ["FEEDLINE_TOKEN", "FEEDLINE_TOKEN_FILE", "FEEDLINE_SECRET_FILE", "FEEDLINE_POOL"] {
            command.env_remove(name);
        }
        if let Some(token) = token {
            // Every user of the host can read command lines, so the token is in the environment.
            command.env("FEEDLINE_TOKEN", &*token.token());
        }
        command.arg("--pool").arg(&settings.pool);
        command.arg("--nic").arg(settings.nic_bytes_per_s.to_string());
        command.arg("--cores").arg(settings.cores.to_string());
        command.arg("--memory").arg(settings.memory_bytes.to_string());
        command.arg("--graph-memory").arg(settings.graph_memory_bytes.to_string());
        command.arg("--grace").arg(format!("{}ms", grace.as_millis()));
        if let Some(cache) = &settings.row_cache {
            let folder = cache.folder.parent().unwrap_or(&cache.folder);
            if !cache.allows_planned_caches {
                command.args(["--planner-uses-cache-dir", "off"]);
            }
            command.arg("--cache-dir").arg(folder).arg("--cache-disk").arg(cache.limit_bytes.to_string());
            command.arg("--cache-disk-together").arg(cache.folder_bytes.to_string());
        }
        for path in own_files.paths() {
            command.arg("--own-file").arg(path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    }

    fn start_worker(&self) -> Result<(), String> {
        let mut command = self.build_command();
        let started = start_child(|| {
            let child = command.spawn()?;
            // The id is known until the exit status is read.
            let id = child.id().unwrap_or_default();
            Ok((child, id))
        });
        let (mut child, registration) =
            started.map_err(|error| format!("cannot start a worker process: {}", reason(&error)))?;
        let input = child.stdin.take().ok_or("the worker process has no standard input")?;
        let mut state = lock(&self.state);
        state.next_number += 1;
        let number = state.next_number;
        state.workers.push(WorkerProcess { number, _input: input });
        state.running += 1;
        drop(state);
        let (state, exited, started) = (Arc::clone(&self.state), Arc::clone(&self.exited), Instant::now());
        tokio::spawn(async move {
            let status = child.wait().await;
            drop(registration);
            let mut state = lock(&state);
            state.running -= 1;
            let index = state.workers.iter().position(|worker| worker.number == number);
            if let Some(index) = index {
                state.workers.remove(index);
                let status = status.map_or_else(|error| reason(&error), |status| status.to_string());
                tracing::warn!(
                    "a worker exited unexpectedly ({status}); a new worker starts when the plan needs one"
                );
                state.on_exit(started.elapsed());
            }
            drop(state);
            exited.notify_waiters();
        });
        Ok(())
    }
}

fn lock(state: &Mutex<ScalerState>) -> MutexGuard<'_, ScalerState> {
    state.lock().expect("no thread panics while it holds the lock")
}

#[async_trait]
impl Scaler for LocalScaler {
    fn pools(&self) -> Vec<PoolLimits> {
        let (min_workers, max_workers) = (self.min_workers, self.max_workers);
        vec![PoolLimits { pool: self.command.settings.pool.clone(), min_workers, max_workers }]
    }

    fn present(&self, _: &str, _: u32) -> Option<u32> {
        Some(lock(&self.state).workers.len() as u32)
    }

    /// Starts or stops workers. The newest workers stop first, because all workers have the same host.
    async fn scale(&self, change: &PoolChange) -> Result<(), String> {
        let wanted = change.wanted as usize;
        let missing = {
            let mut state = lock(&self.state);
            let is_backing_off = state.is_backing_off();
            state.workers.truncate(wanted);
            if is_backing_off || state.is_closed { 0 } else { wanted - state.workers.len() }
        };
        (0..missing).try_for_each(|_| self.start_worker())
    }
}

#[cfg(test)]
mod tests {
    use feedline_worker::ObjectAccess;

    use super::*;
    use crate::cli::{self, Cli, LocalArgs, UpArgs, WorkerArgs};
    use crate::memory_size::MemorySize;
    use crate::{local_workers, worker_flags};

    fn parse(arguments: Vec<OsString>) -> cli::Command {
        cli::parse::<Cli>(arguments).expect("the flags are valid").args.command
    }

    /// Parses the flags of `feedline up`, and creates the scaler of its two worker processes.
    fn scaler_of(flags: &[&str]) -> (UpArgs, LocalScaler) {
        let words =
            ["feedline", "up", "--autoscale", "1..2"].iter().chain(flags).map(OsString::from).collect();
        let cli::Command::Up(up) = parse(words) else { panic!("the command is `up`") };
        let local = LocalArgs { workers: 2, ..up.local.clone() };
        let mut settings = local_workers::settings(&local, &ObjectAccess::default()).unwrap();
        let command = WorkerCommand {
            program: "feedline".into(),
            coordinator: "http://127.0.0.1:7070".to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            settings: settings.remove(0),
            grace: Duration::from_secs(8),
            advertise: up.advertise.clone(),
            token: None,
            own_files: ProtectedFiles::default(),
            forwarded: worker_flags::forwarded(&up.given),
        };
        (up, LocalScaler::new(command, (1, 2)))
    }

    /// Parses the flags of `feedline up`, and the command line of one of its two worker processes.
    fn parse_worker_of(flags: &[&str]) -> (UpArgs, WorkerArgs) {
        let (up, scaler) = scaler_of(flags);
        let command = scaler.build_command();
        let arguments = command.as_std().get_args().map(OsString::from);
        let words = std::iter::once(OsString::from("feedline")).chain(arguments).collect();
        let cli::Command::Worker(worker) = parse(words) else { panic!("the command is `worker`") };
        (up, worker)
    }

    #[test]
    fn the_scaler_and_its_worker_processes_have_the_pool_of_the_parent() {
        for (flags, pool) in [(&["--pool", "spot"][..], "spot"), (&["--pool="], "")] {
            assert_eq!(scaler_of(flags).1.pools()[0].pool, pool);
            assert_eq!(parse_worker_of(flags).1.pool.pool, pool);
        }
    }

    #[test]
    fn a_worker_process_receives_the_flags_of_its_parent() {
        let flags = [
            &[
                "--cores",
                "8",
                "--memory",
                "1GiB",
                "--graph-memory",
                "256MiB",
                "--cache-dir",
                "/cache",
                "--cache-disk",
                "2GiB",
            ][..],
            &["--cache-store", "s3://b/rows", "--cache-store-limit", "1TiB", "--credentials", "c.yaml"],
            &["--allow-url", "s3://a", "--allow-url", "/data", "--allow-metadata-addresses"],
            &["--store-retry-timeout", "5s", "--functions", "on", "--python", "python3", "--trace", "off"],
            &["--tls-ca", "ca", "--tls-cert", "cert", "--tls-key", "key", "--tls-clients", "any"],
            &["--insecure", "--transport", "tcp", "--advertise", "host"],
        ];
        let (up, worker) = parse_worker_of(&flags.concat());
        assert_eq!(worker.stores, up.local.stores);
        assert_eq!(worker.functions, up.local.functions);
        assert_eq!(worker.server_access, up.server_access);
        assert_eq!((worker.transport, worker.trace), (up.transport, up.local.trace));
        let cache = up.local.cache.clone();
        assert_eq!(worker.cache, cli::CacheArgs { cache_disk: 1 << 30, ..cache });
        assert_eq!(worker.cache_disk_together, Some(2 << 30));
        assert_eq!(
            (worker.cores, worker.memory, worker.nic),
            (Some(4), Some(MemorySize::Bytes(1 << 29)), Some(0))
        );
        assert_eq!(worker.graph_memory, Some(MemorySize::Bytes(1 << 27)));
        assert_eq!(worker.advertise_host.as_deref(), Some("host"));
        assert_eq!((worker.grace, worker.while_input), (Duration::from_secs(8), true));
    }

    #[test]
    fn a_worker_process_of_a_parent_without_flags_has_the_defaults() {
        let (up, worker) = parse_worker_of(&["--cores", "2"]);
        assert_eq!((worker.stores, worker.functions), (up.local.stores, up.local.functions));
        assert_eq!(worker.server_access, up.server_access);
        assert!(!worker.planner_uses_cache_dir.is_on(), "the user has not selected a directory");
    }
}
