//! The command line: its commands, and the flags that several commands share. A flag's help states its unit and default.

mod access;
mod cache;
mod cluster;
mod conflicts;
mod functions;
mod given;
mod graph;
mod jobs;
mod limits;
mod local;
mod pool;
mod roles;
mod run;
mod scaling;
mod stores;
mod switch;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use feedline_tools::{BenchArgs, MakeDataArgs};

pub(crate) use self::access::{AccessArgs, ClientAuthArg, SecretArgs, ServerAccessArgs};
pub(crate) use self::cache::CacheArgs;
pub(crate) use self::cluster::{ClusterArgs, RemoteArgs};
pub(crate) use self::conflicts::{ParsedArgs, parse};
pub(crate) use self::functions::FunctionArgs;
pub(crate) use self::given::GivenFlags;
pub(crate) use self::graph::{GraphAction, GraphArgs, GraphBuildArgs, GraphCheckArgs, GraphInfoArgs};
pub(crate) use self::jobs::{JobAction, JobArgs, RemovedJobsArgs};
pub(crate) use self::limits::{ClusterLimitArgs, CoordinatorGraceArgs, FetchLimitArgs, TenantArgs};
pub(crate) use self::local::{AutoCacheArgs, LocalArgs};
pub(crate) use self::pool::PoolArgs;
pub(crate) use self::roles::{CoordinatorArgs, UpArgs, WorkerArgs};
pub(crate) use self::run::RunArgs;
pub(crate) use self::scaling::{ScalerChoice, ScalingArgs, ScalingPlan};
pub(crate) use self::stores::{StoreArgs, WorkerStoreArgs};
pub(crate) use self::switch::SwitchArg;
use crate::explain::ExplainArgs;
use crate::keys::KeysArgs;
use crate::lint::LintArgs;
use crate::logging::LogFormat;
use crate::members::MembersArgs;
use crate::plan::PlanArgs;
use crate::preview::PreviewArgs;
use crate::simulate::SimulateArgs;
use crate::top::TopArgs;

/// The whole command line.
#[derive(Parser, Debug)]
#[command(
    name = "feedline",
    version,
    about = "A distributed input pipeline service: turns a dataset into batches for training, on one machine or many",
    after_help = "Exit status: 0 success, 1 failure, 2 invalid usage, 130 interrupted.\n\
        FEEDLINE_COORDINATOR is the default of every --coordinator; a flag takes precedence over it.\n\
        FEEDLINE_LOG filters log lines, such as debug or feedline_worker=debug,info."
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Format of log lines on standard error.
    // The display order places the flag after the flags of each command.
    #[arg(long, global = true, display_order = 900, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log: LogFormat,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs a pipeline and reports its rate, on this machine or on a cluster.
    Run(Box<RunArgs>),
    /// Runs a coordinator, which leases work to workers and stores positions.
    Coordinator(CoordinatorArgs),
    /// Runs a worker, which reads and transforms rows and serves batches.
    Worker(WorkerArgs),
    /// Runs a coordinator and workers on this host.
    Up(UpArgs),
    /// Indexes a pipeline's dataset before its first run.
    Index(IndexArgs),
    /// Builds, describes and checks graphs, from which batches of sampled neighbors are made.
    Graph(GraphArgs),
    /// Finds errors in a pipeline and its dataset before a job starts, without reading all data.
    Lint(LintArgs),
    /// Prints the first rows of a pipeline, or writes them to an HTML page.
    Preview(PreviewArgs),
    /// Traces a pipeline for several seconds, and reports its bottleneck and possible improvements.
    Explain(ExplainArgs),
    /// Plans traced jobs for the workers in a cluster file, and reports how many workers they need.
    Plan(PlanArgs),
    /// Lists, shows and cancels jobs, and changes the weights of their mixes.
    Job(JobArgs),
    /// Removed: use `feedline job` instead.
    #[command(hide = true)]
    Jobs(RemovedJobsArgs),
    /// Shows a cluster's jobs, workers, bottlenecks and plan, and refreshes them every second.
    Top(TopArgs),
    /// Lists, adds and removes coordinators of a cluster, and transfers leadership.
    Members(MembersArgs),
    /// Creates certificates, a secret and tokens that protect a cluster.
    Keys(KeysArgs),
    /// Generates a dataset for tests and benchmarks.
    #[command(hide = true)]
    MakeData(MakeDataArgs),
    /// Simulates a cluster, compares scaling rules, and measures the cost of planning.
    Simulate(SimulateArgs),
    /// Measures the limits of this machine, and Feedline on it.
    #[command(hide = true)]
    Bench(BenchArgs),
}

impl Command {
    /// Returns the log level that applies if `FEEDLINE_LOG` is not set.
    pub(crate) fn default_log_level(&self) -> &'static str {
        match self {
            Self::Coordinator(_) | Self::Worker(_) | Self::Up(_) => "info",
            _ => "warn",
        }
    }
}

/// Arguments of `feedline index`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline index pipeline.yaml\n  \
    feedline index pipeline.yaml --recode --cache-disk 200GiB\n  \
    feedline index pipeline.yaml --rebuild --coordinator http://10.0.0.1:7070")]
pub(crate) struct IndexArgs {
    /// Pipeline file; its relative paths start at the working directory.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Ignore the saved index and create a new index; needed after shards were replaced, removed or added.
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Also fill the pipeline's `cache` on disk, for example with re-encoded JPEGs, up to --cache-disk.
    #[arg(long)]
    pub(crate) recode: bool,
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    #[command(flatten)]
    pub(crate) auto_cache: AutoCacheArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}
