//! The only place that wires roles and reads flags and the environment: the `feedline` command ([`run_command`]), and the
//! same roles for programs that have Feedline inside ([`JobService`]).

mod access;
mod bench;
mod cli;
mod cluster;
mod coordinator_contact;
mod credentials_file;
mod entropy;
mod environment;
mod explain;
mod failure;
mod flight;
mod http;
mod index;
mod jobs;
mod keys;
mod listen;
mod local_listener;
mod local_scaler;
mod local_workers;
mod logging;
mod make_data;
mod members;
mod output;
mod pipeline_file;
mod plan;
mod process_metrics;
mod progress;
mod replace;
mod run;
mod serve;
mod service;
mod signals;
mod simulate;
mod size;
mod store_access;
mod table;
mod tenants_file;
mod top;
mod trace_file;
mod yaml;

pub use self::failure::Failure;
pub use self::service::{ByteSize, JobService, ServiceSettings, Switch};

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feedline_contained::is_contained;
use feedline_worker::BLOCKING_THREADS;
use tokio::runtime::Runtime;

use self::cli::{Cli, Command, Parsed};
use self::failure::reason;

/// Time that tasks have after a command is done.
const GRACE: Duration = Duration::from_secs(1);

/// The `feedline` command: reads the process's arguments, does what they say, and gives the exit status.
pub fn run_command() -> ExitCode {
    let started = Instant::now();
    panic::set_hook(Box::new(|panic| {
        if is_contained() {
            return;
        }
        let text = panic.to_string().replace('\n', " ");
        eprintln!("feedline: internal error: {text}; this is a defect of feedline, please report it");
    }));
    let cli = match cli::parse(std::env::args_os()) {
        Ok(Parsed { args, notice }) => {
            if let Some(notice) = notice {
                eprintln!("feedline: {notice}");
            }
            args
        }
        Err(error) => {
            // Help that nobody reads is no error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // The hook has printed the panic's line.
    let ended = panic::catch_unwind(AssertUnwindSafe(|| execute(cli, started)));
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            eprintln!("feedline: {failure}");
            ExitCode::from(failure.status())
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn execute(cli: Cli, started: Instant) -> Result<(), Failure> {
    logging::start(cli.log, cli.command.log_level())?;
    if let Command::MakeData(args) = cli.command {
        return make_data::run(args).map_err(|error| {
            let tried = error.chain().any(|cause| cause.is::<std::io::Error>());
            if tried { Failure::Failed(error) } else { Failure::WrongUse(error) }
        });
    }
    if let Command::Keys(args) = cli.command {
        return keys::run(args);
    }
    if let Command::Simulate(args) = &cli.command {
        return simulate::run(args);
    }
    let runtime = start_runtime()
        .map_err(|error| Failure::failed(format!("cannot start threads: {}; free some", reason(&error))))?;
    let ended = runtime.block_on(dispatch(cli, started));
    runtime.shutdown_timeout(GRACE);
    ended
}

/// The runtime starts its IO threads as it is built; whatever thread comes later makes a blocking call.
fn start_runtime() -> std::io::Result<Runtime> {
    let built = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&built);
    let name = move || if seen.load(Ordering::Relaxed) { BLOCKING_THREADS } else { "feedline-io" };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(environment::cores().max(2) as usize)
        .thread_name_fn(move || name().to_owned())
        .enable_all()
        .build()?;
    built.store(true, Ordering::Relaxed);
    Ok(runtime)
}

async fn dispatch(cli: Cli, started: Instant) -> Result<(), Failure> {
    match cli.command {
        Command::Run(args) => run::run(*args, started).await,
        Command::Coordinator(args) => serve::run_coordinator(args).await,
        Command::Worker(args) => serve::run_worker(args).await,
        Command::Up(args) => serve::run_up(args, cli.log).await,
        Command::Index(args) => index::run(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Members(args) => members::run(args).await,
        Command::Job(args) => jobs::run(args).await,
        Command::Jobs(args) => Err(jobs::reject_removed(&args)),
        Command::Top(args) => top::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Keys(_) | Command::MakeData(_) | Command::Simulate(_) => Ok(()),
    }
}
