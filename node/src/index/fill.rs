//! Fills a pipeline's cache with a job that processes every row up to the cache and delivers nothing.

use std::sync::Arc;
use std::time::Duration;

use feedline_client::{ClientSettings, Job};
use feedline_data::messages::{JobSpec, JobStatus};
use feedline_data::pipeline::{CacheTier, Pipeline};
use tokio_util::sync::CancellationToken;

use crate::cli::IndexArgs;
use crate::cluster::LocalCluster;
use crate::entropy;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::run::consume::{cancel_job, wait_until_settled};
use crate::size::{format_bytes, format_count};

/// Interval between updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of filling the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FillProgress {
    /// Number of rows in the dataset.
    rows: u64,
    /// Number of rows that were looked up in the cache.
    looked_up_rows: u64,
    /// Number of rows that the cache already contained.
    found_rows: u64,
    /// Bytes that were read to compute the missing rows.
    read_bytes: u64,
}

impl FillProgress {
    fn of(status: &JobStatus) -> Self {
        let operator = |name: &str| status.operators.iter().find(|operator| operator.name == name);
        let cache = operator("cache");
        Self {
            rows: status.dataset.as_ref().map_or(0, |dataset| dataset.rows),
            looked_up_rows: cache.map_or(0, |cache| cache.rows_in),
            found_rows: cache.map_or(0, |cache| cache.rows_out),
            read_bytes: operator("source").map_or(0, |source| source.bytes_out),
        }
    }

    /// Formats the result as one line of text.
    pub(super) fn render(&self, took: Duration) -> String {
        let added = self.looked_up_rows.saturating_sub(self.found_rows);
        format!(
            "filled the cache: added {} from {}, found {}; {:.2} s\n",
            format_count(added, "row"),
            format_bytes(self.read_bytes as f64),
            self.found_rows,
            took.as_secs_f64(),
        )
    }
}

/// Returns a pipeline whose job fills the cache of `pipeline`.
///
/// # Errors
/// Returns an error if the pipeline has no cache that outlives this command.
pub(super) fn fill_pipeline(pipeline: &Pipeline, args: &IndexArgs) -> Result<Pipeline, Failure> {
    let file = args.file.display();
    match (pipeline.cached_prefix(), pipeline.cache_fill_pipeline()) {
        (Some((_, CacheTier::Memory)), _) if args.remote.urls().is_empty() => Err(Failure::failed(format!(
            "{file}: its `cache` is in the memory of this process: set `tier: disk`, or pass --coordinator"
        ))),
        (Some(_), Some(filling)) => Ok(filling),
        _ => Err(Failure::failed(format!(
            "{file}: the pipeline has no `cache` to fill: add `- recode_jpeg: {{ column: ... }}` and `- cache: {{ tier: disk }}` before its first random operator"
        ))),
    }
}

/// Runs the job until the cache is filled.
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
                cancel_job(&job).await;
                return Err(Failure::Interrupted(
                    "interrupted; the cache keeps the rows added so far: run the same command again to add the rest".to_owned(),
                ));
            }
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let FillProgress { rows, looked_up_rows, .. } = FillProgress::of(&job.status().await?);
                progress.show(format!("filling the cache: {looked_up_rows} of {rows} rows"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_line_counts_added_and_found_rows() {
        let filled = FillProgress { rows: 400, looked_up_rows: 400, found_rows: 30, read_bytes: 41_000_000 };
        assert_eq!(
            filled.render(Duration::from_millis(1500)),
            "filled the cache: added 370 rows from 41.0 MB, found 30; 1.50 s\n"
        );
    }
}
