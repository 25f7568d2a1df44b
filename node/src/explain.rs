//! `feedline explain`: runs a pipeline for several seconds in this process, and reports the cost of each operator, the
//! bottleneck, possible improvements and the plan. The trace can be saved for `feedline plan`.

mod explanation;
mod long_runs;
mod probe;
mod sampled_graphs;
mod seconds;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::explanation::Explanation;
use crate::cli::LocalArgs;
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::output::ReportFormat;
use crate::trace_file::SavedTrace;
use crate::{output, pipeline_file, signals, trace_file};

/// Arguments of `feedline explain`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline explain pipeline.yaml\n  \
    feedline explain pipeline.yaml --rows 20000 --cores 4 --format json\n  \
    feedline explain pipeline.yaml --save-trace")]
pub(crate) struct ExplainArgs {
    /// Pipeline file; its relative paths start at the working directory.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Stop after this number of rows [default: unlimited].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Stop this many seconds after the first batch. A trace of less than 3 seconds cannot distinguish between a store
    /// with high latency and a store with low bandwidth.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Milliseconds that the consumer spends on each batch.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    step_ms: u64,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "report", value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    /// Save the trace for `feedline plan` [default path: pipeline.trace.json next to pipeline.yaml].
    #[arg(long, value_name = "PATH")]
    save_trace: Option<Option<PathBuf>>,
    #[command(flatten)]
    local: LocalArgs,
}

/// Traces the pipeline and prints the report.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let original = pipeline_file::read(&args.file)?;
    let pipeline = pipeline_file::resolve(original.clone())?;
    let stop = signals::watch()?;
    let cluster = LocalCluster::open_without_planner(&args.local).await?;
    let limits = trace::TraceLimits {
        rows: args.rows.unwrap_or(u64::MAX),
        time: Duration::from_secs(args.seconds),
        step: Duration::from_millis(args.step_ms),
        disk_bytes: args.local.cache.cache_disk / u64::from(args.local.workers),
    };
    let traced = trace::trace(&cluster, pipeline.clone(), limits, &stop).await;
    cluster.shutdown().await;
    let traced = traced?;
    let saved = SavedTrace::new(&original, &pipeline, traced.input());
    let explanation = Explanation::new(&original.name, traced);
    args.format.print(&explanation, Explanation::to_text)?;
    let Some(path) = args.save_trace else { return Ok(()) };
    let path = path.unwrap_or_else(|| trace_file::default_path(&args.file));
    saved.save(&path)?;
    if args.format == ReportFormat::Text {
        output::print(&format!("\nsaved the trace for `feedline plan`: {}\n", path.display()))?;
    }
    Ok(())
}
