//! The `feedline` command ([`run_command`]), and the same roles for programs that embed Feedline ([`JobService`]). No other
//! crate wires the roles together or reads flags and the environment.

mod access;
mod cli;
mod cluster;
mod container;
mod coordinator_contact;
mod credentials_file;
mod disk_metrics;
mod entropy;
mod environment;
mod explain;
mod flight;
mod graph;
mod http;
mod index;
mod jobs;
mod keys;
mod leader_decisions;
mod lint;
mod listen;
mod local_listener;
mod local_scaler;
mod local_workers;
mod logging;
mod members;
mod memory_size;
mod orphans;
mod peer_workers;
mod pipeline_file;
mod plan;
mod preview;
mod process_metrics;
mod progress;
mod recompress;
mod reload;
mod run;
mod serve;
mod service;
mod signals;
mod simulate;
mod store_access;
mod tenants_file;
mod termination;
mod tool_host;
mod top;
mod trace_file;
mod worker_flags;
mod yaml;

pub use self::graph::build_graph_file;
pub use self::service::{ByteSize, JobService, ServiceSettings, Switch};
pub use feedline_command::Failure;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feedline_command::failure::reason;
use feedline_command::{failure, output, size, table};
use feedline_contained::is_contained;
use feedline_tools::{run_bench, run_make_data};
use feedline_worker::BLOCKING_THREAD_PREFIX;
use tokio::runtime::Runtime;

use self::cli::{Cli, Command, ParsedArgs};
use self::termination::{usage_error_sentence, write_termination_message};
use self::tool_host::NodeToolHost;

/// Time that background tasks have to end after a command.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the `feedline` command with the process's arguments, and returns the exit status.
pub fn run_command() -> ExitCode {
    let started = Instant::now();
    panic::set_hook(Box::new(|panic| {
        if is_contained() {
            return;
        }
        let text = panic.to_string().replace('\n', " ");
        eprintln!("feedline: internal error: {text}; this is a bug in feedline, please report it");
    }));
    let cli = match cli::parse(std::env::args_os()) {
        Ok(ParsedArgs { args, notice }) => {
            if let Some(notice) = notice {
                eprintln!("feedline: {notice}");
            }
            args
        }
        Err(error) => {
            // A closed pipe is not an error.
            let _ = error.print();
            // Help and the version are not errors either.
            if error.use_stderr() {
                write_termination_message(&usage_error_sentence(&error));
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // The panic hook has printed the message.
    let ended = panic::catch_unwind(AssertUnwindSafe(|| execute(cli, started)));
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            eprintln!("feedline: {failure}");
            write_termination_message(&failure.to_string());
            ExitCode::from(failure.status())
        }
        Err(panic) => {
            write_termination_message(&format!("internal error: {}", panic_message(panic.as_ref())));
            ExitCode::FAILURE
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown panic")
}

fn execute(cli: Cli, started: Instant) -> Result<(), Failure> {
    logging::start(cli.log, cli.command.default_log_level())?;
    match &cli.command {
        Command::MakeData(args) => return run_make_data(args),
        Command::Simulate(args) => return simulate::run(args),
        _ => {}
    }
    let runtime = start_runtime().map_err(|error| {
        Failure::failed(format!("cannot start threads: {}; stop other processes", reason(&error)))
    })?;
    // `feedline bench` waits for processes that are not registered.
    let reaps = !matches!(cli.command, Command::Bench(_)) && orphans::adopts_orphans();
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = dispatch(cli, started) => ended,
            never = orphans::reap(), if reaps => match never {},
        }
    });
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

/// Builds the runtime. Threads that start during the build run IO. Later threads run blocking calls and receive a
/// different name.
fn start_runtime() -> std::io::Result<Runtime> {
    let is_built = Arc::new(AtomicBool::new(false));
    let starts_blocking = Arc::clone(&is_built);
    let name =
        move || if starts_blocking.load(Ordering::Relaxed) { BLOCKING_THREAD_PREFIX } else { "feedline-io" };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(environment::cores().max(2) as usize)
        .thread_name_fn(move || name().to_owned())
        .enable_all()
        .build()?;
    is_built.store(true, Ordering::Relaxed);
    Ok(runtime)
}

async fn dispatch(cli: Cli, started: Instant) -> Result<(), Failure> {
    match cli.command {
        Command::Run(args) => run::run(*args, started).await,
        Command::Coordinator(args) => serve::run_coordinator(args).await,
        Command::Worker(args) => serve::run_worker(args).await,
        Command::Up(args) => serve::run_up(args).await,
        Command::Index(args) => index::run(args).await,
        Command::Graph(args) => graph::run(args).await,
        Command::Lint(args) => lint::run(args).await,
        Command::Preview(args) => preview::run(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Members(args) => members::run(args).await,
        Command::Job(args) => jobs::run(args).await,
        Command::Jobs(args) => Err(jobs::reject_removed(&args)),
        Command::Top(args) => top::run(args).await,
        Command::Bench(args) => run_bench(args, &NodeToolHost).await,
        Command::Keys(args) => keys::run(args).await,
        Command::MakeData(_) | Command::Simulate(_) => Ok(()),
    }
}
