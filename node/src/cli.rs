//! The command line: its commands, and the flags that several commands share. A flag states its unit and default.

mod access;
mod cache;
mod cluster;
mod functions;
mod jobs;
mod local;
mod roles;
mod run;
mod stores;
mod switch;
mod tenants;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::access::{AccessArgs, ClientsArg, GuardArgs, SecretArgs};
pub(crate) use self::cache::CacheArgs;
pub(crate) use self::cluster::{ClusterArgs, Parsed, RemoteArgs, parse};
pub(crate) use self::functions::FunctionArgs;
pub(crate) use self::jobs::{JobAction, JobArgs, RemovedJobsArgs};
pub(crate) use self::local::LocalArgs;
pub(crate) use self::roles::{CoordinatorArgs, UpArgs, WorkerArgs};
pub(crate) use self::run::{ReportFormat, RunArgs};
pub(crate) use self::stores::StoreArgs;
pub(crate) use self::switch::SwitchArg;
pub(crate) use self::tenants::{GraceArgs, LimitArgs, RoomArgs, TenantArgs};
use crate::bench::BenchArgs;
use crate::explain::ExplainArgs;
use crate::keys::KeysArgs;
use crate::logging::LogFormat;
use crate::make_data::MakeDataArgs;
use crate::members::MembersArgs;
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
