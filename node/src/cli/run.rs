//! Flags of `feedline run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{GuardArgs, LocalArgs, RemoteArgs};
use crate::local_listener::TransportArg;
use crate::run::StepTime;

/// What `feedline run` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Relative paths in the pipeline file (source.url, tokenize.tokenizer) start at the directory \
    in which feedline is run; URLs with a scheme are left alone.\n\
    Ctrl-C ends a run in order: with --position the place is saved and the exit status is 0, else it is 130.\n\n\
    Examples:\n  \
    feedline run pipeline.yaml\n  \
    feedline run pipeline.yaml --epochs 3 --consumers 2 --audit --report json\n  \
    feedline run pipeline.yaml --limit 10000 --position place.json\n  \
    feedline run pipeline.yaml --coordinator http://10.0.0.1:7070\n  \
    feedline run pipeline.yaml --coordinator http://10.0.0.1:7070 --job train --elastic --virtual-consumers 64 --rank 3"
)]
pub(crate) struct RunArgs {
    /// The pipeline file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The cluster, instead of workers in this process.
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Resources in this process.
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    /// What is shown to the coordinator, and to whom --http is served.
    #[command(flatten)]
    pub(crate) guard: GuardArgs,
    /// Name of the job [default: the pipeline's name and a random ending].
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Consumers that take batches at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) consumers: u32,
    /// Fixed slots that rows are dealt to, at least as many as consumers: the same number gives the same batches on
    /// any number of consumers [default: that of the position file, else --consumers].
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) virtual_consumers: Option<u32>,
    /// Ranks come and go while the job runs: its virtual consumers are slots that those share which are there. --consumers
    /// is how many are expected at first.
    #[arg(long, conflicts_with_all = ["position", "limit"])]
    pub(crate) elastic: bool,
    /// Take part in an elastic job as this rank alone; others have other numbers. Ctrl-C leaves the job, which goes on with
    /// the ranks that stay.
    #[arg(long, value_name = "K", requires = "elastic", requires = "coordinator", requires = "job", conflicts_with = "audit", value_parser = clap::value_parser!(u32).range(..65536))]
    pub(crate) rank: Option<u32>,
    /// Passes over the dataset.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// Claim of the job where there are too few workers for all, from 0.01 to 100: jobs of a tenant are fed in
    /// proportion to their weights.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, requires = "coordinator")]
    pub(crate) weight: f64,
    /// Stop after this many rows, counted over all consumers. Batches stay whole: each consumer stops at the batch
    /// that reaches its equal share [default: the whole job].
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Count every row's id and report which came once, more often or not at all; exit with 1 unless each came once.
    #[arg(long)]
    pub(crate) audit: bool,
    /// File of the place in the job, as JSON: read at the start where it exists; written every 10 s, at the end and on
    /// Ctrl-C [default: none].
    #[arg(long, value_name = "FILE")]
    pub(crate) position: Option<PathBuf>,
    /// How the report looks; json ends standard output with one object on one line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) report: ReportFormat,
    /// Do not compute digests of the batches: measures the service alone.
    #[arg(long, conflicts_with = "position")]
    pub(crate) no_digest: bool,
    /// Milliseconds that each consumer spends on a batch, as a training step would; `40,60:10` is 40 ms, and 10 ms from
    /// second 60 on.
    #[arg(long, value_name = "MS[,SECOND:MS...]", default_value = "0")]
    pub(crate) step_ms: StepTime,
    /// Batches that each consumer holds or has on their way, such as 64MiB [default: 256MiB for all, and at least 32MiB].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) buffer: Option<u64>,
    /// Address to serve /metrics, /healthz and /readyz on, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// By which way batches come from the workers of --coordinator.
    #[arg(long, hide = true, value_enum, value_name = "WAY", default_value_t)]
    pub(crate) transport: TransportArg,
}

/// How a report looks.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReportFormat {
    /// A short table.
    #[default]
    Text,
    /// One JSON object on one line.
    Json,
}
