//! The command line: every command and flag, with its unit and default. What the flags mean is up to the commands.

mod access;
mod cache;
mod cluster;
mod functions;
mod jobs;
mod roles;
mod run;
mod stores;
mod tenants;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::access::{AccessArgs, ClientsArg, GuardArgs, SecretArgs};
pub(crate) use self::cache::CacheArgs;
pub(crate) use self::cluster::{ClusterArgs, Parsed, RemoteArgs, parse};
pub(crate) use self::functions::FunctionArgs;
pub(crate) use self::jobs::{JobAction, JobArgs, RemovedJobsArgs};
pub(crate) use self::roles::{CoordinatorArgs, UpArgs, WorkerArgs};
pub(crate) use self::run::{ReportFormat, RunArgs};
pub(crate) use self::stores::StoreArgs;
pub(crate) use self::tenants::{GraceArgs, LimitArgs, RoomArgs, TenantArgs};
use crate::bench::BenchArgs;
use crate::explain::ExplainArgs;
use crate::keys::KeysArgs;
use crate::logging::LogFormat;
use crate::make_data::MakeDataArgs;
use crate::plan::PlanArgs;
use crate::simulate::SimulateArgs;
use crate::top::TopArgs;

/// The whole command line.
#[derive(Parser, Debug)]
#[command(
    name = "feedline",
    version,
    about = "A distributed input-pipeline service: turns a dataset into batches for training, on one machine or many",
    after_help = "Exit status: 0 done, 1 it failed, 2 wrong use, 130 interrupted.\n\
        FEEDLINE_COORDINATOR is the default of every --coordinator; a flag takes precedence over it.\n\
        FEEDLINE_LOG filters log lines, such as debug or feedline_worker=debug,info."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How log lines look on standard error.
    // Behind the flags of every command, however many commands there are.
    #[arg(long, global = true, display_order = 900, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log: LogFormat,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs a pipeline and reports its rate; on this machine, or on a cluster with --coordinator.
    Run(Box<RunArgs>),
    /// Runs a coordinator: it leases work to workers and keeps positions.
    Coordinator(CoordinatorArgs),
    /// Runs a worker: it reads, decodes and augments, and serves batches.
    Worker(WorkerArgs),
    /// Runs a coordinator and workers on this host, for other programs to use.
    Up(UpArgs),
    /// Indexes a pipeline's dataset ahead of its first run.
    Index(IndexArgs),
    /// Runs a pipeline for some seconds and tells what bounds it and what would help.
    Explain(ExplainArgs),
    /// Plans traced jobs on workers that a file describes: who works on what, and how many workers are wanted.
    Plan(PlanArgs),
    /// Lists, shows and cancels jobs, and changes the weights of their mixes.
    Job(JobArgs),
    /// Removed: `feedline job` replaces it.
    #[command(hide = true)]
    Jobs(RemovedJobsArgs),
    /// Shows a coordinator's jobs and workers, what bounds each job and what the planner says, anew each second.
    Top(TopArgs),
    /// Lists, adds and removes coordinators of a cluster.
    Members(MembersArgs),
    /// Makes certificates, a secret and tokens, so that only those who have them can use a cluster.
    Keys(KeysArgs),
    /// Makes a data set to try and to measure with.
    #[command(hide = true)]
    MakeData(MakeDataArgs),
    /// Compares scaling rules, and shows what large clusters cost, in simulated time.
    Simulate(SimulateArgs),
    /// Measures what this machine can do, and what Feedline does on it.
    #[command(hide = true)]
    Bench(BenchArgs),
}

impl Command {
    /// The level of log lines where `FEEDLINE_LOG` says nothing.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Self::Coordinator(_) | Self::Worker(_) | Self::Up(_) => "info",
            _ => "warn",
        }
    }
}

/// Resources of the workers in this process.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalArgs {
    /// Workers in this process.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    /// Cores that run operators, split over the workers [default: those this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Memory for batches and blocks, split over the workers, such as 4GiB [default: 1 GiB, or a quarter of the
    /// machine's where that is less].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Directory of saved dataset indexes [default: feedline in $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) index_dir: Option<PathBuf>,
    /// Row caches.
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Whether rows are also kept in caches where no pipeline asks for it and the model finds it worth while.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) auto_cache: SwitchArg,
    /// What pipelines may read, and with which keys.
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Python functions of pipelines.
    #[command(flatten)]
    pub(crate) functions: FunctionArgs,
    /// Whether operators are measured.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) trace: SwitchArg,
}

/// Whether something is done.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SwitchArg {
    /// It is.
    #[default]
    On,
    /// It is not.
    Off,
}

impl SwitchArg {
    /// As a setting.
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

/// What `feedline index` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline index pipeline.yaml\n  \
    feedline index pipeline.yaml --recode --cache-disk 200GiB\n  \
    feedline index pipeline.yaml --rebuild --coordinator http://10.0.0.1:7070")]
pub(crate) struct IndexArgs {
    /// The pipeline file; relative paths in it start at the directory in which feedline is run.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The cluster, instead of workers in this process.
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Index anew, ignoring the saved index: after shards were replaced, removed or added.
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Then also fill the pipeline's `cache` on disk, such as with recoded JPEGs, so that no epoch has to; as far as
    /// --cache-disk reaches.
    #[arg(long)]
    pub(crate) recode: bool,
    /// Resources in this process.
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    /// What is shown to the coordinator.
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// What `feedline members` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "To replace a coordinator whose disk is lost: remove it, start one with an empty data directory \
    at the same address, and add that.\n\n\
    Examples:\n  \
    feedline members list --coordinator http://10.0.0.1:7070\n  \
    feedline members add http://10.0.0.4:7070 --coordinator http://10.0.0.1:7070\n  \
    feedline members remove http://10.0.0.2:7070 --coordinator http://10.0.0.1:7070"
)]
pub(crate) struct MembersArgs {
    /// The cluster.
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print one JSON array on one line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What is shown to coordinators.
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// The action.
    #[command(subcommand)]
    pub(crate) change: Option<MembersChange>,
}

/// An action on the coordinators of a cluster.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum MembersChange {
    /// Lists the coordinators.
    List,
    /// Adds a coordinator that runs with an empty data directory and these coordinators as its --peers.
    Add {
        /// Where it listens, as the others reach it.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Removes a coordinator, which need not run any more.
    Remove {
        /// Where it listened.
        #[arg(value_name = "URL")]
        url: String,
    },
}
