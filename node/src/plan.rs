//! `feedline plan`: what the planner would do with traced jobs on workers that a file describes. Nothing runs.

mod cluster_file;
mod jobs;
mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_planner::plan::{Plan, Problem, solve};

use self::cluster_file::ClusterFile;
use crate::cli::ReportFormat;
use crate::failure::Failure;
use crate::output;
use crate::trace_file::SavedTrace;

/// Longest that planning may take.
const PLANNING: Duration = Duration::from_secs(60);

/// What `feedline plan` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "A trace is what `feedline explain FILE --save-trace` saw: it says what each operator of the \
    pipeline costs. docs/planning.md describes the cluster file.\n\n\
    Examples:\n  \
    feedline plan --jobs a.yaml b.yaml --cluster cluster.yaml\n  \
    feedline plan --jobs *.trace.json --cluster cluster.yaml --format json"
)]
pub(crate) struct PlanArgs {
    /// Pipeline files, each with its trace beside it (a.trace.json beside a.yaml), or traces themselves.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    jobs: Vec<PathBuf>,
    /// The file of workers, store, prices and what is known of jobs.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// How the plan looks; json prints one object on one line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

/// Plans and prints.
pub(crate) async fn run(args: PlanArgs) -> Result<(), Failure> {
    let cluster = ClusterFile::load(&args.cluster)?;
    let traces = args.jobs.iter().map(|file| SavedTrace::find(file)).collect::<Result<Vec<_>, _>>()?;
    let name = args.cluster.display().to_string();
    let problem = jobs::problem(&cluster, &traces, &name).map_err(Failure::wrong_use)?;
    let planned = tokio::task::spawn_blocking(move || plan(problem)).await.map_err(Failure::failed)?;
    let (problem, plan) = planned.map_err(Failure::wrong_use)?;
    Ok(output::print(&match args.format {
        ReportFormat::Text => text::render(&problem, &plan),
        ReportFormat::Json => serde_json::to_string(&plan).map_err(Failure::failed)? + "\n",
    })?)
}

fn plan(problem: Problem) -> Result<(Problem, Plan), String> {
    let started = Instant::now();
    let plan = solve(&problem, None, &|| started.elapsed() > PLANNING)?;
    Ok((problem, plan))
}
