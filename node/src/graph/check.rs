//! `feedline graph check`: reads all files of a graph, and checks their hashes and contents.

use std::time::Instant;

use feedline_graph::check_graph;

use super::folder::{graph_failure, open};
use crate::cli::GraphCheckArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::size::{format_bytes, format_count};
use crate::{output, signals};

/// Checks the graph and prints one line.
pub(super) async fn run(args: GraphCheckArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let stop = signals::watch()?;
    let progress = Progress::start();
    progress.show("checking the graph".to_owned());
    let check = async {
        let folder = open(&args.url, &args.stores).await?;
        check_graph(&folder, u64::MAX).await.map_err(graph_failure)
    };
    let checked = tokio::select! {
        checked = check => checked?,
        () = stop.cancelled() => {
            return Err(Failure::Interrupted("interrupted before the graph was checked".to_owned()));
        }
    };
    drop(progress);
    let files = format_count(checked.files, "file");
    let line = format!(
        "checked {files}, {}: no errors; {:.1} s\n",
        format_bytes(checked.bytes as f64),
        started.elapsed().as_secs_f64()
    );
    Ok(output::print(&line)?)
}
