//! `feedline explain`: runs a pipeline for some seconds in this process, and tells what each operator costs, what bounds the
//! job, what would help, and what the planner would do. What was seen can be saved for `feedline plan`.

mod explanation;
mod probe;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::explanation::Explanation;
use crate::cli::{LocalArgs, ReportFormat};
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::trace_file::SavedTrace;
use crate::{output, pipeline_file, signals, trace_file};

/// What `feedline explain` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline explain pipeline.yaml\n  \
    feedline explain pipeline.yaml --rows 20000 --cores 4 --format json\n  \
    feedline explain pipeline.yaml --save-trace")]
pub(crate) struct ExplainArgs {
    /// The pipeline file; relative paths in it start at the directory in which feedline is run.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Rows to trace; by default as many as come in --seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Seconds to trace at most, after the first batch; with fewer than 3 a far store is not told from a slow one.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Milliseconds that the consumer spends on each batch; by default it takes what comes.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    step_ms: u64,
    /// How the report looks; json ends standard output with one object on one line.
    #[arg(long, alias = "report", value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    /// Save what was seen, for `feedline plan`; without a path as pipeline.trace.json beside pipeline.yaml.
    #[arg(long, value_name = "PATH")]
    save_trace: Option<Option<PathBuf>>,
    /// Resources in this process.
    #[command(flatten)]
    local: LocalArgs,
}

/// Traces and prints.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let written = pipeline_file::read(&args.file)?;
    let pipeline = pipeline_file::resolved(written.clone())?;
    let stop = signals::watch()?;
    let cluster = LocalCluster::unplanned(&args.local).await?;
    let limits = trace::TraceLimits {
        rows: args.rows.unwrap_or(u64::MAX),
        time: Duration::from_secs(args.seconds),
        step: Duration::from_millis(args.step_ms),
        disk_bytes: args.local.cache.cache_disk / u64::from(args.local.workers),
    };
    let traced = trace::trace(&cluster, pipeline.clone(), limits, &stop).await;
    cluster.shutdown().await;
    let traced = traced?;
    let saved = SavedTrace::new(&written, &pipeline, traced.seen());
    let explanation = Explanation::new(&written.name, traced);
    output::print(&match args.format {
        ReportFormat::Text => explanation.to_text(),
        ReportFormat::Json => explanation.to_json().map_err(Failure::failed)?,
    })?;
    let Some(path) = args.save_trace else { return Ok(()) };
    let path = path.unwrap_or_else(|| trace_file::beside(&args.file));
    saved.save(&path)?;
    match args.format {
        ReportFormat::Text => {
            Ok(output::print(&format!("\nsaved for `feedline plan`: {}\n", path.display()))?)
        }
        ReportFormat::Json => Ok(()),
    }
}
