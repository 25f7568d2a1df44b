//! `feedline plan`: plans traced jobs on the workers of a cluster file, without running anything.

mod cluster_file;
mod jobs;
mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_planner::plan::{Plan, Problem, solve};

use self::cluster_file::ClusterFile;
use crate::failure::Failure;
use crate::output::ReportFormat;
use crate::trace_file::SavedTrace;

/// Time limit for the planner.
const PLANNING_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `feedline plan`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "A trace, from `feedline explain FILE --save-trace`, contains the cost of each operator of a \
    pipeline. docs/planning.md describes the cluster file.\n\n\
    Examples:\n  \
    feedline plan --jobs a.yaml b.yaml --cluster cluster.yaml\n  \
    feedline plan --jobs *.trace.json --cluster cluster.yaml --format json"
)]
pub(crate) struct PlanArgs {
    /// Traces, or pipeline files with a trace next to each (a.trace.json next to a.yaml).
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    jobs: Vec<PathBuf>,
    /// Cluster file, which describes the workers, the store, prices and properties of jobs.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Format of the plan; json prints one object on one line.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

/// Plans the jobs and prints the plan.
pub(crate) async fn run(args: PlanArgs) -> Result<(), Failure> {
    let cluster = ClusterFile::load(&args.cluster)?;
    let traces = args.jobs.iter().map(|file| SavedTrace::find(file)).collect::<Result<Vec<_>, _>>()?;
    let name = args.cluster.display().to_string();
    let problem = jobs::build_problem(&cluster, &traces, &name).map_err(Failure::invalid_usage)?;
    let planned = tokio::task::spawn_blocking(move || plan(problem)).await.map_err(Failure::failed)?;
    let (problem, plan) = planned.map_err(Failure::invalid_usage)?;
    args.format.print(&plan, |plan| text::render(&problem, plan))
}

fn plan(problem: Problem) -> Result<(Problem, Plan), String> {
    let started = Instant::now();
    let plan = solve(&problem, None, &|| started.elapsed() > PLANNING_TIMEOUT)?;
    Ok((problem, plan))
}
