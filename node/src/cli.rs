//! The command line: every command and flag, with its unit and default. What the flags mean is up to the commands.

mod access;
mod functions;
mod roles;
mod run;
mod stores;
mod tenants;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use feedline_data::ids::JobId;

pub(crate) use self::access::{AccessArgs, ClientsArg, GuardArgs, SecretArgs};
pub(crate) use self::functions::FunctionArgs;
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
    /// Lists the jobs of a coordinator, cancels one, or changes the weights of its mix.
    Jobs(JobsArgs),
    /// Shows a coordinator's jobs and workers, what bounds each job and what the planner says, anew each second.
    Top(TopArgs),
    /// Lists, adds and removes coordinators of a cluster.
    Members(MembersArgs),
    /// Makes certificates, a secret and tokens, so that only those who have them can use a cluster.
    Keys(KeysArgs),
    /// Makes a data set to try and to measure with.
    MakeData(MakeDataArgs),
    /// Compares scaling rules, and shows what large clusters cost, in simulated time.
    Simulate(SimulateArgs),
    /// Measures what this machine can do, and what Feedline does on it.
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
    /// Directory in whose folder `rows` pipelines with `cache: {tier: disk}` keep rows [default: feedline in
    /// $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Disk that these rows may take, split over the workers, such as 100GiB.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_disk: u64,
    /// Place in an object store where pipelines with `cache: {tier: store}` keep rows for all workers, such as
    /// s3://bucket/feedline-rows [default: none].
    #[arg(long, value_name = "URL")]
    pub(crate) cache_store: Option<String>,
    /// Bytes that rows may take there, such as 1TiB. Nothing is deleted there.
    #[arg(long, value_name = "SIZE", default_value = "100GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_store_limit: u64,
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
    /// Index on this cluster's workers instead of in this process, such as http://10.0.0.1:7070; of several
    /// coordinators one or more.
    #[arg(long, value_name = "URL,URL", value_delimiter = ',', conflicts_with_all = ["workers", "cores", "memory", "index_dir", "cache_dir", "credentials", "allow_url", "allow_metadata_addresses"])]
    pub(crate) coordinator: Vec<String>,
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

/// What `feedline jobs` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline jobs --coordinator http://10.0.0.1:7070\n  \
    feedline jobs --coordinator http://10.0.0.1:7070 --cancel 3\n  \
    feedline jobs --coordinator http://10.0.0.1:7070 --weights 3=0.7,0.3")]
pub(crate) struct JobsArgs {
    /// The coordinator; of several one or more.
    #[arg(long, value_name = "URL,URL", value_delimiter = ',', default_value = "http://127.0.0.1:7070")]
    pub(crate) coordinator: Vec<String>,
    /// Print one JSON array on one line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Cancel the job with this id, as the table shows it.
    #[arg(long, value_name = "ID", value_parser = parse_job, conflicts_with = "json")]
    pub(crate) cancel: Option<JobId>,
    /// Give the datasets of the mix of the job with this id these weights, in the pipeline's order. They hold from behind the rows that were
    /// handed out already.
    #[arg(long, value_name = "ID=W,W", value_parser = parse_weights, conflicts_with_all = ["json", "cancel"])]
    pub(crate) weights: Option<JobWeights>,
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
    feedline members --coordinator http://10.0.0.1:7070\n  \
    feedline members --coordinator http://10.0.0.1:7070 add http://10.0.0.4:7070\n  \
    feedline members --coordinator http://10.0.0.1:7070 remove http://10.0.0.2:7070"
)]
pub(crate) struct MembersArgs {
    /// One or more of the coordinators.
    #[arg(
        long,
        global = true,
        value_name = "URL,URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    pub(crate) coordinator: Vec<String>,
    /// Print one JSON array on one line instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What is shown to coordinators.
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// What to change; lists them where nothing is.
    #[command(subcommand)]
    pub(crate) change: Option<MembersChange>,
}

/// How to change the coordinators.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum MembersChange {
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

/// Weights for the mix of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobWeights {
    pub(crate) job: JobId,
    pub(crate) weights: Vec<f64>,
}

fn parse_weights(text: &str) -> Result<JobWeights, String> {
    let (id, weights) = text.split_once('=').ok_or("write a job's id and its weights, such as 3=0.7,0.3")?;
    let weight = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("`{text}` is no weight"));
    let weights = weights.split(',').map(weight).collect::<Result<Vec<f64>, String>>()?;
    Ok(JobWeights { job: parse_job(id.trim())?, weights })
}

fn parse_job(text: &str) -> Result<JobId, String> {
    let id = u64::from_str_radix(text, 16);
    id.map(JobId).map_err(|_| format!("`{text}` is no job's id; `feedline jobs` lists them"))
}
