//! Workers as processes of this host, as many as the coordinator's plans want: for `feedline up --autoscale`.
//!
//! A worker runs for as long as its standard input is open: closing it makes the worker drain and end, and so does the end
//! of this process, however it comes.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use clap::ValueEnum;
use feedline_access::{Bearer, OwnFiles};
use feedline_coordinator::Scaler;
use tokio::process::{ChildStdin, Command};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cli::{GuardArgs, StoreArgs};
use crate::failure::reason;
use crate::local_listener::TransportArg;
use crate::local_workers::LocalWorkerShare;
use crate::logging::LogFormat;

/// A worker that ends within this time of its start is taken to be unable to run.
const TOO_SOON: Duration = Duration::from_secs(5);
/// Pause before others are started after that: doubled each time, up to the next.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What each worker is started with.
#[derive(Debug)]
pub(crate) struct WorkerCommand {
    /// This program.
    pub(crate) program: PathBuf,
    /// Where the coordinator listens.
    pub(crate) coordinator: String,
    /// Address that it listens on, with port 0.
    pub(crate) listen: String,
    /// Resources of one worker.
    pub(crate) share: LocalWorkerShare,
    /// Time to serve what it holds.
    pub(crate) grace: Duration,
    /// Host at which consumers reach it; the address that it listens on where there is none.
    pub(crate) advertise: Option<String>,
    /// How its log lines look.
    pub(crate) log: LogFormat,
    /// Ways that it offers to consumers on this host.
    pub(crate) transport: TransportArg,
    /// Whom it serves.
    pub(crate) guard: GuardArgs,
    /// What it shows to the coordinator, where that asks for it.
    pub(crate) token: Option<Bearer>,
    /// What pipelines may read, and with which keys.
    pub(crate) stores: StoreArgs,
    /// Files that no pipeline reads.
    pub(crate) own_files: OwnFiles,
}

/// Starts and drains worker processes.
#[derive(Debug)]
pub(crate) struct LocalScaler {
    command: WorkerCommand,
    state: Arc<Mutex<State>>,
    /// Woken when a worker has ended.
    ended: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// Workers that stay, the oldest first.
    staying: Vec<Staying>,
    /// Processes that run, those that leave among them.
    running: usize,
    next: u64,
    pause: Duration,
    not_before: Option<Instant>,
    /// No further ones are started.
    closed: bool,
}

#[derive(Debug)]
struct Staying {
    number: u64,
    /// Closing it lets the worker go.
    _input: ChildStdin,
}

impl LocalScaler {
    pub(crate) fn new(command: WorkerCommand) -> Self {
        Self { command, state: Arc::default(), ended: Arc::default() }
    }

    /// Workers show this token.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.command.token = Some(Bearer::fixed(token));
        self
    }

    /// Lets all workers go and waits for their end, until then.
    pub(crate) async fn shutdown(&self, deadline: Instant) {
        {
            let mut state = lock(&self.state);
            state.closed = true;
            state.staying.clear();
        }
        let gone = async {
            loop {
                let ended = self.ended.notified();
                if lock(&self.state).running == 0 {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout_at(deadline, gone).await.is_err() {
            tracing::warn!("some workers did not end in time; they end by themselves");
        }
    }

    fn start(&self) -> Result<(), String> {
        let WorkerCommand { program, coordinator, listen, share, grace, advertise, log, transport, .. } =
            &self.command;
        let WorkerCommand { guard, token, stores, own_files, .. } = &self.command;
        let mut command = Command::new(program);
        command.args(["worker", "--while-input", "--coordinator", coordinator, "--listen", listen]);
        command.args(["--log", &value_name(log), "--transport", &value_name(transport)]);
        if let Some(host) = advertise {
            command.args(["--advertise-host", host]);
        }
        let GuardArgs { access, tls_clients, insecure } = guard;
        let files =
            [("--tls-ca", &access.tls_ca), ("--tls-cert", &access.tls_cert), ("--tls-key", &access.tls_key)];
        for (flag, file) in files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_ref()?))) {
            command.arg(flag).arg(file);
        }
        command.args(["--tls-clients", &value_name(tls_clients)]);
        if *insecure {
            command.arg("--insecure");
        }
        // What this process shows, and what its coordinator alone may know, are none of theirs.
        for name in ["FEEDLINE_TOKEN", "FEEDLINE_TOKEN_FILE", "FEEDLINE_SECRET_FILE"] {
            command.env_remove(name);
        }
        if let Some(token) = token {
            // Flags can be read by every user of the host.
            command.env("FEEDLINE_TOKEN", &*token.token());
        }
        command.arg("--nic").arg(share.nic_bytes_per_s.to_string());
        command.arg("--cores").arg(share.cores.to_string());
        command.arg("--memory").arg(share.memory_bytes.to_string());
        command.arg("--grace").arg(format!("{}ms", grace.as_millis()));
        if let Some(cache) = &share.row_cache {
            let folder = cache.folder.parent().unwrap_or(&cache.folder);
            if !cache.is_for_plans {
                command.args(["--cache-dir-for-plans", "off"]);
            }
            command.arg("--cache-dir").arg(folder).arg("--cache-disk").arg(cache.limit_bytes.to_string());
            command.arg("--cache-disk-together").arg(cache.folder_bytes.to_string());
        }
        if let Some(cache) = &share.store_cache {
            command.arg("--cache-store").arg(&cache.url);
            command.arg("--cache-store-limit").arg(cache.limit_bytes.to_string());
        }
        if let Some(file) = &stores.credentials {
            command.arg("--credentials").arg(file);
        }
        match &share.functions {
            Some(functions) => {
                command.args(["--functions", "on"]).arg("--python").arg(&functions.python);
            }
            None => {
                command.args(["--functions", "off"]);
            }
        }
        for prefix in &stores.allow_url {
            command.args(["--allow-url", prefix]);
        }
        if stores.allow_metadata_addresses {
            command.arg("--allow-metadata-addresses");
        }
        for path in own_files.paths() {
            command.arg("--own-file").arg(path);
        }
        if !share.trace {
            command.args(["--trace", "off"]);
        }
        let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = started.map_err(|error| format!("a worker cannot be started: {}", reason(&error)))?;
        let input = child.stdin.take().ok_or("a worker came without an input; please report this")?;
        let mut state = lock(&self.state);
        state.next += 1;
        let number = state.next;
        state.staying.push(Staying { number, _input: input });
        state.running += 1;
        drop(state);
        let (state, ended, begun) = (Arc::clone(&self.state), Arc::clone(&self.ended), Instant::now());
        tokio::spawn(async move {
            let status = child.wait().await;
            let mut state = lock(&state);
            state.running -= 1;
            let place = state.staying.iter().position(|one| one.number == number);
            if let Some(place) = place {
                state.staying.remove(place);
                let status = status.map_or_else(|error| reason(&error), |status| status.to_string());
                tracing::warn!("a worker ended by itself ({status}); another is started when it is needed");
                let pauses = state.not_before.is_some_and(|time| Instant::now() < time);
                if pauses {
                    // One attempt: several that were started together end together.
                } else if begun.elapsed() < TOO_SOON {
                    state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                    state.not_before = Some(Instant::now() + state.pause);
                } else {
                    (state.pause, state.not_before) = (Duration::ZERO, None);
                }
            }
            drop(state);
            ended.notify_waiters();
        });
        Ok(())
    }
}

/// A flag's value as the command line has it.
fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no code panics while it holds the list of workers")
}

#[async_trait]
impl Scaler for LocalScaler {
    fn present(&self) -> u32 {
        lock(&self.state).staying.len() as u32
    }

    /// The newest go first.
    async fn scale(&self, wanted: u32) -> Result<(), String> {
        let missing = {
            let mut state = lock(&self.state);
            let waits = state.not_before.is_some_and(|time| Instant::now() < time);
            state.staying.truncate(wanted as usize);
            if waits || state.closed { 0 } else { wanted as usize - state.staying.len() }
        };
        (0..missing).try_for_each(|_| self.start())
    }
}
