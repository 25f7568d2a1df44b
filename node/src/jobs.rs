//! `feedline jobs`: how a coordinator's jobs stand.

use feedline_core::cluster::messages::{JobState, JobStatus};

use crate::cli::JobsArgs;
use crate::failure::Failure;
use crate::{cluster, output, table};

/// Lists jobs, or cancels one.
pub(crate) async fn run(args: JobsArgs) -> Result<(), Failure> {
    let coordinator = cluster::connect(&args.coordinator).await?;
    if let Some(job) = args.cancel {
        coordinator.cancel_job(job).await?;
        return Ok(output::print(&format!("job {job} is cancelled\n"))?);
    }
    let jobs = coordinator.list_jobs().await?;
    if args.json {
        let line = serde_json::to_string(&jobs).map_err(Failure::failed)?;
        return Ok(output::print(&format!("{line}\n"))?);
    }
    Ok(output::print(&render(&jobs))?)
}

fn render(jobs: &[JobStatus]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let head = ["id", "name", "state", "epoch", "done", "consumers", "rows"].map(str::to_owned).to_vec();
    let rows = jobs.iter().map(|job| {
        let (epoch, done) = progress(job);
        vec![
            job.job.to_string(),
            job.name.clone(),
            state(&job.state),
            epoch,
            done,
            job.consumers.to_string(),
            job.delivered.rows.to_string(),
        ]
    });
    table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), &[1, 2])
}

/// How a job stands, in a word or with what went wrong.
pub(crate) fn state(state: &JobState) -> String {
    match state {
        JobState::Preparing { shards: 0, .. } => "listing".to_owned(),
        JobState::Preparing { indexed, shards, .. } => format!("indexing {indexed}/{shards}"),
        JobState::Running => "running".to_owned(),
        JobState::Completed => "completed".to_owned(),
        JobState::Failed(sentence) => format!("failed: {sentence}"),
        JobState::Cancelled => "cancelled".to_owned(),
    }
}

/// The present epoch of all, and the share of the job's rows that lies behind its consumers.
fn progress(job: &JobStatus) -> (String, String) {
    let (Some(layout), Some(position)) = (&job.layout, &job.position) else {
        return (format!("-/{}", job.epochs), "-".to_owned());
    };
    let streams = || position.streams.iter().zip(0..);
    let epoch = position
        .streams
        .iter()
        .map(|stream| stream.epoch)
        .min()
        .unwrap_or(0)
        .min(job.epochs.saturating_sub(1));
    let per_epoch: u64 = streams().map(|(_, stream)| layout.stream_rows(stream)).sum();
    let all = per_epoch * u64::from(layout.epochs);
    let behind = |(place, stream): (&feedline_core::layout::StreamPosition, u32)| {
        u64::from(place.epoch) * layout.stream_rows(stream) + place.row
    };
    let open: u64 = position.open.iter().map(|range| range.to - range.from).sum();
    let done = streams().map(behind).sum::<u64>().saturating_sub(open).min(all);
    let share = if all == 0 { 100.0 } else { done as f64 / all as f64 * 100.0 };
    (format!("{}/{}", epoch + 1, job.epochs), format!("{share:.0} %"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_core::cluster::messages::{ConsumerStats, StoreStats};
    use feedline_core::ids::JobId;

    use super::*;

    fn job(id: u64, state: JobState) -> JobStatus {
        JobStatus {
            job: JobId(id),
            name: format!("job-{id}"),
            state,
            epochs: 2,
            consumers: 1,
            dataset: None,
            layout: None,
            position: None,
            operators: Vec::new(),
            store: StoreStats::default(),
            worker_cpu: Vec::new(),
            delivered: ConsumerStats { rows: id * 100, ..ConsumerStats::default() },
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            workers: 1,
            settled: true,
        }
    }

    #[test]
    fn the_table_shows_every_state() {
        let jobs = [
            job(1, JobState::Preparing { indexed: 0, shards: 0, workers: 1 }),
            job(2, JobState::Preparing { indexed: 3, shards: 10, workers: 1 }),
            job(26, JobState::Failed("no rows".to_owned())),
        ];
        expect![[r#"
            id  name    state            epoch  done  consumers  rows
             1  job-1   listing            -/2     -          1   100
             2  job-2   indexing 3/10      -/2     -          1   200
            1a  job-26  failed: no rows    -/2     -          1  2600
        "#]]
        .assert_eq(&render(&jobs));
        assert_eq!(render(&[]), "no jobs\n");
    }
}
