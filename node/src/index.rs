//! `feedline index`: indexes a dataset before its first run, and fills the pipeline's cache with `--recode`.

mod fill;

use std::time::{Duration, Instant};

use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobSpec, JobState, JobStatus};
use feedline_data::pipeline::Pipeline;
use feedline_proto::CoordinatorService;
use tokio_util::sync::CancellationToken;

use crate::cli::IndexArgs;
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::recompress;
use crate::size::{format_bytes, format_count};
use crate::{entropy, output, pipeline_file, signals};

/// Interval between polls of the job.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of defects that the report lists.
const MAX_LISTED_DEFECTS: usize = 10;

/// Indexes the dataset and prints a summary.
pub(crate) async fn run(args: IndexArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let pipeline = pipeline_file::load(&args.file)?;
    let fill = if args.recode { Some(fill::fill_pipeline(&pipeline, &args)?) } else { None };
    let stop = signals::watch()?;
    let (urls, local) = (args.remote.urls(), (&args.local, args.auto_cache.auto_cache));
    let cluster = tokio::select! {
        cluster = LocalCluster::open(&urls, &args.access, local) => cluster?,
        () = stop.cancelled() => return Err(interrupted()),
    };
    let name = format!("index-{}-{}", pipeline.name, entropy::name_suffix());
    let spec = JobSpec { name, reindex: args.rebuild, index_only: true, ..JobSpec::new(pipeline) };
    let done = index_and_fill(&cluster, spec, fill, &stop, started).await;
    cluster.shutdown().await;
    done
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted before the dataset was indexed".to_owned())
}

async fn index_and_fill(
    cluster: &LocalCluster,
    spec: JobSpec,
    fill: Option<Pipeline>,
    stop: &CancellationToken,
    started: Instant,
) -> Result<(), Failure> {
    let (status, manifest) = index_dataset(cluster.coordinator.as_ref(), spec, stop).await?;
    output::print(&render(&status, manifest.as_deref(), started.elapsed()))?;
    let Some(pipeline) = fill else { return Ok(()) };
    let started = Instant::now();
    let filled = fill::run(cluster, pipeline, stop).await?;
    Ok(output::print(&filled.render(started.elapsed()))?)
}

async fn index_dataset(
    coordinator: &dyn CoordinatorService,
    spec: JobSpec,
    stop: &CancellationToken,
) -> Result<(JobStatus, Option<std::sync::Arc<Manifest>>), Failure> {
    let job = coordinator.open_job(spec).await?;
    let status = tokio::select! {
        status = wait_for_end(coordinator, job) => status?,
        () = stop.cancelled() => {
            coordinator.cancel_job(job).await?;
            return Err(interrupted());
        }
    };
    match &status.state {
        JobState::Failed(sentence) => return Err(Failure::failed(sentence)),
        JobState::Cancelled => {
            return Err(Failure::failed("the index job was cancelled: run the command again"));
        }
        _ => {}
    }
    let is_remarkable = status.dataset.as_ref().is_some_and(|dataset| {
        let has_long_runs =
            !dataset.runs.is_empty() || dataset.part_runs.iter().any(|part| part.long_rows > 0);
        dataset.defects > 0 || has_long_runs
    });
    let manifest = if is_remarkable { Some(coordinator.manifest(job).await?) } else { None };
    Ok((status, manifest))
}

async fn wait_for_end(coordinator: &dyn CoordinatorService, job: JobId) -> Result<JobStatus, Failure> {
    let progress = Progress::start();
    loop {
        let status = coordinator.job_status(job).await?;
        if status.state.is_ended() {
            return Ok(status);
        }
        progress.show_state(&status.state);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn render(status: &JobStatus, manifest: Option<&Manifest>, took: Duration) -> String {
    let Some(dataset) = &status.dataset else { return "indexed the dataset\n".to_owned() };
    let mut text = String::new();
    if !dataset.changes.is_empty() {
        text.push_str(&format!("{}\n", dataset.changes.describe(dataset.shards)));
    }
    text.push_str(&format!(
        "indexed {}: {} in {}, {}, {}; {:.2} s\n",
        format_count(dataset.shards, "shard"),
        format_count(dataset.rows, "row"),
        format_count(dataset.blocks, "block"),
        format_bytes(dataset.bytes as f64),
        format_count(dataset.defects, "defect"),
        took.as_secs_f64(),
    ));
    for (shard, defect) in manifest.into_iter().flat_map(Manifest::defects).take(MAX_LISTED_DEFECTS) {
        text.push_str(&format!("  {} at byte {}: {}\n", shard.object.url, defect.offset, defect.reason));
    }
    let files = manifest.map(recompress::long_run_files).unwrap_or_default();
    for (url, codec) in files.iter().take(recompress::MAX_LISTED_FILES) {
        text.push_str(&format!("  {}\n", recompress::long_run_message(*codec, url)));
    }
    if let Some(more) = files.len().checked_sub(recompress::MAX_LISTED_FILES).filter(|more| *more > 0) {
        text.push_str(&format!("  and {}\n", format_count(more as u64, "more file")));
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_data::manifest::{Defect, Shard, ShardIndex, ShardRef};
    use feedline_data::messages::ConsumerStats;
    use feedline_data::schema::Schema;

    use super::*;

    #[test]
    fn the_summary_lists_defects_with_their_offsets() {
        let object = ShardRef {
            url: "file:///d/a.tfrecord".to_owned(),
            size_bytes: 99,
            version: "1".to_owned(),
            ..ShardRef::default()
        };
        let defects = vec![Defect { offset: 42, reason: "the last record is cut off".to_owned() }];
        let index = ShardIndex {
            blocks: Vec::new(),
            schema: Some(Schema::default()),
            defects,
            ..ShardIndex::default()
        };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard::new(object, index)] };
        let status = JobStatus {
            job: JobId(1),
            tenant: String::new(),
            name: "index".to_owned(),
            state: JobState::Completed,
            epochs: 1,
            consumers: 1,
            dataset: Some(manifest.summary()),
            layout: None,
            position: None,
            operators: Vec::new(),
            store: Default::default(),
            worker_cpu: Vec::new(),
            delivered: ConsumerStats::default(),
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            workers: 1,
            settled: true,
            slot_owners: Vec::new(),
            source_error: None,
        };
        expect![[r#"
            indexed 1 shard: 0 rows in 0 blocks, 0 B, 1 defect; 1.50 s
              file:///d/a.tfrecord at byte 42: the last record is cut off
        "#]]
        .assert_eq(&render(&status, Some(&manifest), Duration::from_millis(1500)));
    }
}
