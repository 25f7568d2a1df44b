//! `feedline top`: a coordinator's jobs and workers, and what the planner says, once or as a picture that is drawn anew.

mod live;
mod picture;
mod screen;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::cli::{AccessArgs, ClusterArgs, ReportFormat};
use crate::failure::Failure;
use crate::size::parse_duration;
use crate::{cluster, output};

/// What `feedline top` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "q or Ctrl-C ends it.\n\n\
    Examples:\n  \
    feedline top --coordinator http://10.0.0.1:7070\n  \
    feedline top --once --format json")]
pub(crate) struct TopArgs {
    /// The cluster.
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print one picture and end, as without a terminal.
    #[arg(long)]
    once: bool,
    /// How it looks; json prints one object on one line and ends.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    /// Time between pictures.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// What is shown to the coordinator.
    #[command(flatten)]
    access: AccessArgs,
}

/// Shows the cluster.
pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    let urls = args.cluster.urls();
    let coordinator = cluster::connect(&urls, &args.access.credentials()?).await?;
    let is_live = !args.once && args.format == ReportFormat::Text && std::io::stdout().is_terminal();
    if is_live {
        return live::run(coordinator, &urls.join(","), args.interval).await;
    }
    let view = coordinator.cluster().await?;
    Ok(output::print(&match args.format {
        ReportFormat::Text => picture::render(&view),
        ReportFormat::Json => serde_json::to_string(&view).map_err(Failure::failed)? + "\n",
    })?)
}
