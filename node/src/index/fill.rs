//! Fills a pipeline's cache by a job that takes every row up to the cache and delivers nothing.

use std::sync::Arc;
use std::time::Duration;

use feedline_client::{ClientSettings, Job};
use feedline_data::messages::{JobSpec, JobStatus};
use feedline_data::pipeline::{CacheTier, Pipeline};
use tokio_util::sync::CancellationToken;

use super::LOOK;
use crate::cli::IndexArgs;
use crate::cluster::LocalCluster;
use crate::entropy;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::run::consume::{abandon, wait_until_settled};
use crate::size::{show_bytes, show_count};

/// How far the cache is filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FillProgress {
    /// Rows of the dataset.
    rows: u64,
    /// Rows that were looked for in the cache.
    looked_for: u64,
    /// Of these, those that were there before.
    found: u64,
    /// Bytes of the rows that were read for the others.
    read_bytes: u64,
}

impl FillProgress {
    fn of(status: &JobStatus) -> Self {
        let operator = |name: &str| status.operators.iter().find(|operator| operator.name == name);
        let cache = operator("cache");
        Self {
            rows: status.dataset.as_ref().map_or(0, |dataset| dataset.rows),
            looked_for: cache.map_or(0, |cache| cache.rows_in),
            found: cache.map_or(0, |cache| cache.rows_out),
            read_bytes: operator("source").map_or(0, |source| source.bytes_out),
        }
    }

    /// A line for people.
    pub(super) fn render(&self, took: Duration) -> String {
        let made = self.looked_for.saturating_sub(self.found);
        format!(
            "filled the cache: {} made from {}, {} kept before; {:.2} s\n",
            show_count(made, "row"),
            show_bytes(self.read_bytes as f64),
            self.found,
            took.as_secs_f64(),
        )
    }
}

/// The pipeline that fills the cache of `pipeline`.
///
/// # Errors
/// One sentence where it has none that outlives this command.
pub(super) fn pipeline(pipeline: &Pipeline, args: &IndexArgs) -> Result<Pipeline, Failure> {
    let file = args.file.display();
    match (pipeline.cached(), pipeline.filling_cache()) {
        (Some((_, CacheTier::Memory)), _) if args.remote.urls().is_empty() => Err(Failure::failed(format!(
            "{file}: its `cache` is in memory, which ends with this command: give it `tier: disk`, or name a cluster with --coordinator"
        ))),
        (Some(_), Some(filling)) => Ok(filling),
        _ => Err(Failure::failed(format!(
            "{file}: the pipeline has no `cache` to fill: put `- recode_jpeg: {{ column: ... }}` and `- cache: {{ tier: disk }}` before its first random operator"
        ))),
    }
}

/// Runs the job.
pub(super) async fn run(
    cluster: &LocalCluster,
    pipeline: Pipeline,
    stop: &CancellationToken,
) -> Result<FillProgress, Failure> {
    let name = format!("fill-{}-{}", pipeline.name, entropy::name_suffix());
    let spec = JobSpec { name, ..JobSpec::new(pipeline) };
    let job =
        Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec, ClientSettings::default())
            .await?;
    let progress = Progress::start();
    let mut consumer = job.consumer(0, entropy::session_id());
    let work = async {
        while consumer.next().await?.is_some() {}
        consumer.flush().await
    };
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                done?;
                return Ok(FillProgress::of(&wait_until_settled(&job).await?));
            }
            () = stop.cancelled() => {
                abandon(&job).await;
                return Err(Failure::Interrupted(
                    "interrupted; the rows kept so far stay in the cache: run the same command for the others".to_owned(),
                ));
            }
            () = tokio::time::sleep(LOOK) => {
                let FillProgress { rows, looked_for, .. } = FillProgress::of(&job.status().await?);
                progress.show(format!("filling the cache: {looked_for} of {rows} rows"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_was_made_and_what_was_there() {
        let filled = FillProgress { rows: 400, looked_for: 400, found: 30, read_bytes: 41_000_000 };
        assert_eq!(
            filled.render(Duration::from_millis(1500)),
            "filled the cache: 370 rows made from 41.0 MB, 30 kept before; 1.50 s\n"
        );
    }
}
