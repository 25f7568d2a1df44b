//! Flags of `feedline run`.

use std::path::PathBuf;

use clap::Args;

use super::{AutoCacheArgs, LocalArgs, RemoteArgs, ServerAccessArgs};
use crate::local_listener::TransportArg;
use crate::output::ReportFormat;
use crate::run::StepTime;

/// Arguments of `feedline run`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Relative paths in the pipeline file (source.url, tokenize.tokenizer) start at the working directory; URLs \
    with a scheme are not changed.\n\
    Ctrl-C stops the run: with --position it saves the position and exits with status 0, otherwise with 130.\n\n\
    Examples:\n  \
    feedline run pipeline.yaml\n  \
    feedline run pipeline.yaml --epochs 3 --consumers 2 --audit --report json\n  \
    feedline run pipeline.yaml --limit 10000 --position position.json\n  \
    feedline run pipeline.yaml --coordinator http://10.0.0.1:7070\n  \
    feedline run pipeline.yaml --coordinator http://10.0.0.1:7070 --job train --elastic --virtual-consumers 64 --rank 3"
)]
pub(crate) struct RunArgs {
    /// Pipeline file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    #[command(flatten)]
    pub(crate) auto_cache: AutoCacheArgs,
    #[command(flatten)]
    pub(crate) server_access: ServerAccessArgs,
    /// Name of the job [default: the pipeline's name and a random suffix].
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Number of consumers that receive batches at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) consumers: u32,
    /// Number of virtual consumers, at least --consumers. The same number produces the same batches for any number of
    /// consumers [default: the number in the position file, otherwise --consumers].
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) virtual_consumers: Option<u32>,
    /// Allow ranks to join and leave while the job runs: the current ranks share the job's virtual consumers as slots.
    /// --consumers is the number of ranks expected at the start.
    #[arg(long, conflicts_with_all = ["position", "limit"])]
    pub(crate) elastic: bool,
    /// Join an elastic job as this rank; the other ranks are other processes. Ctrl-C leaves the job, which continues with
    /// the remaining ranks.
    #[arg(long, value_name = "K", requires = "elastic", requires = "coordinator", requires = "job", conflicts_with = "audit", value_parser = clap::value_parser!(u32).range(..65536))]
    pub(crate) rank: Option<u32>,
    /// Number of epochs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// Weight of the job, from 0.01 to 100: if the workers cannot feed all jobs of a tenant, each job receives a share in
    /// proportion to its weight.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, requires = "coordinator")]
    pub(crate) weight: f64,
    /// Stop after this number of rows, summed over all consumers. Batches are not split: each consumer stops after the
    /// batch that reaches its equal share [default: no limit].
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Count every row id, and report missing and repeated rows; the exit status is 1 unless each row was delivered
    /// exactly once.
    #[arg(long)]
    pub(crate) audit: bool,
    /// JSON file with the position in the job. An existing file is read at the start; the file is written every 10 s,
    /// at the end and on Ctrl-C [default: none].
    #[arg(long, value_name = "FILE")]
    pub(crate) position: Option<PathBuf>,
    /// Resume from --position even if shards were written again since it was saved, and indexing reads only parts of them,
    /// such as the footer of a Parquet file. These parts must be equal. Not needed if the store has checksums of the shards.
    #[arg(long, requires = "position")]
    pub(crate) accept_reuploaded: bool,
    /// Resume from --position even if the pipeline changed since it was saved. The rows after the position are those of the new
    /// pipeline. If it has another order of rows, some rows of the epoch may be repeated or missing.
    #[arg(long, requires = "position")]
    pub(crate) accept_changed_pipeline: bool,
    /// Format of the report; json prints one object on one line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) report: ReportFormat,
    /// Do not compute batch digests, so that only the service is measured.
    #[arg(long, conflicts_with = "position")]
    pub(crate) no_digest: bool,
    /// Milliseconds that each consumer spends on a batch, like a training step; `40,60:10` means 40 ms, and 10 ms from
    /// second 60.
    #[arg(long, value_name = "MS[,SECOND:MS...]", default_value = "0")]
    pub(crate) step_ms: StepTime,
    /// Receive buffer size of each consumer, such as 64MiB [default: 256MiB divided by --consumers, at least 32MiB].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) buffer: Option<u64>,
    /// Memory of each consumer for features of nodes in a graph, such as 4GiB, in addition to --buffer. Workers omit the cached
    /// rows from batches [default: none].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) feature_cache: Option<u64>,
    /// Address on which to serve /metrics, /healthz, /readyz and /startupz, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Transport for batches from the workers of a cluster.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value_t)]
    pub(crate) transport: TransportArg,
}
