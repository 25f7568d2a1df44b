//! `feedline top`: shows the jobs, the workers and the plan of a cluster, once or with periodic refreshes.

mod live;
mod render;
mod screen;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_data::view::ClusterView;

use crate::cli::{AccessArgs, ClusterArgs};
use crate::cluster::{self, RETRY_PAUSE};
use crate::failure::Failure;
use crate::output::ReportFormat;
use crate::size::parse_duration;

/// Time that `--min-workers` waits for workers.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of `feedline top`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Press q or Ctrl-C to exit.\n\n\
    Examples:\n  \
    feedline top --coordinator http://10.0.0.1:7070\n  \
    feedline top --once --format json")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print once and exit; this is the default without a terminal.
    #[arg(long)]
    once: bool,
    /// Exit with status 1 unless at least this number of workers report. Waits for up to 30 s.
    #[arg(long, value_name = "N", requires = "once")]
    min_workers: Option<usize>,
    /// Format of the output; json prints one object on one line and exits.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    /// Time between refreshes.
    #[arg(long, value_name = "TIME", default_value = "1s", conflicts_with = "once", value_parser = parse_duration)]
    interval: Duration,
    #[command(flatten)]
    access: AccessArgs,
}

/// Shows the cluster once or until the user exits.
pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    let urls = args.cluster.urls();
    let access = args.access.reloaded_credentials()?;
    let coordinator = cluster::connect(&urls, &access.credentials).await?;
    let is_live = !args.once && args.format == ReportFormat::Text && std::io::stdout().is_terminal();
    if is_live {
        return live::run(coordinator, &urls.join(","), args.interval).await;
    }
    let deadline = Instant::now() + WORKERS_TIMEOUT;
    loop {
        let view = coordinator.cluster().await?;
        let checked = args.min_workers.map_or(Ok(()), |minimum| check_workers(&view, minimum));
        if checked.is_ok() || Instant::now() >= deadline {
            args.format.print(&view, render::render)?;
            return checked.map_err(Failure::failed);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Returns a sentence if fewer workers than `minimum` report. Workers that drain do not count.
fn check_workers(view: &ClusterView, minimum: usize) -> Result<(), String> {
    let live = view.workers.iter().filter(|worker| !worker.draining).count();
    if live >= minimum {
        return Ok(());
    }
    Err(format!(
        "{live} workers report, but --min-workers is {minimum}: look at the logs of the workers that do not"
    ))
}
