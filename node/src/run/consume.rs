//! Runs all consumers of a job concurrently, and pauses them together to write a checkpoint.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedline_client::Job;
use feedline_client::audit::AuditReport;
use feedline_data::messages::{ConsumerStats, JobState, JobStatus};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::consumer::RunConsumer;
use super::position::{Digests, PositionFile};
use super::report::UnreadablePartsReport;
use super::stall_watch::StallWatch;
use crate::failure::Failure;
use crate::progress::{DeliveryRates, Progress};

/// Interval between polls of a job that is being prepared.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Interval between checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);
/// A timer that never fires.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// Interval between updates of the progress line.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time to wait for the workers' last reports on an ended job.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEnd {
    /// All rows are delivered.
    Complete,
    /// Each consumer has reached its share of the limit.
    Limit,
    /// The user interrupted the run.
    Interrupted,
}

/// The result of a run.
pub(super) struct DeliveredRows {
    pub(super) consumers: Vec<RunConsumer>,
    pub(super) end: DeliveryEnd,
    /// Time of the first request for a batch.
    pub(super) requested: Instant,
    pub(super) audit: Option<AuditReport>,
    pub(super) defects: UnreadablePartsReport,
    /// Status of the job at the end.
    pub(super) status: JobStatus,
}

/// Waits until the dataset is indexed or the job has ended. Returns `None` if the user interrupts the run.
pub(super) async fn wait_until_ready(
    job: &Job,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Option<JobStatus>, Failure> {
    let mut stall_watch = StallWatch::new(Instant::now(), Duration::ZERO);
    let mut has_shown_reason = false;
    loop {
        let status = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            status = job.status() => status?,
        };
        if !matches!(status.state, JobState::Preparing { .. }) {
            return Ok(Some(status));
        }
        progress.show_state(&status.state);
        if let Some(reason) = status.source_error.as_ref().filter(|_| !has_shown_reason) {
            eprintln!("feedline: waiting for the topics: {reason}");
            has_shown_reason = true;
        }
        if matches!(status.state, JobState::Preparing { workers: 0, .. }) {
            stall_watch.watch(job, 0).await;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Writes the checkpoints of a run.
pub(super) struct Checkpoints<'a> {
    /// The position file.
    pub(super) path: &'a Path,
    /// Rows that earlier runs delivered.
    pub(super) rows_before: u64,
}

impl Checkpoints<'_> {
    /// Writes the position of the job. All consumers must be paused.
    async fn write(&self, job: &Job, consumers: &[RunConsumer]) -> Result<(), Failure> {
        // Before the dataset is indexed, the job has no position and has delivered no rows.
        let Some(position) = job.position().await? else { return Ok(()) };
        let rows = self.rows_before + consumers.iter().map(|consumer| consumer.stats().rows).sum::<u64>();
        let file = PositionFile::new(position, &merge_digests(consumers), rows);
        let path = self.path.to_owned();
        let written = tokio::task::spawn_blocking(move || file.write(&path)).await;
        written.map_err(|error| Failure::failed(format!("cannot write the position: {error}")))?
    }
}

/// Merges the digests of all consumers.
pub(super) fn merge_digests(consumers: &[RunConsumer]) -> Digests {
    let mut all = Digests::default();
    for consumer in consumers {
        all.streams.extend(consumer.digests.streams.iter().map(|(stream, digest)| (*stream, digest.clone())));
        all.content.merge(&consumer.digests.content);
    }
    all
}

/// Shows progress and stalls to the user.
pub(super) struct RunDisplay<'a> {
    progress: &'a Progress,
    rates: DeliveryRates,
    stall_watch: StallWatch,
    /// The counters of each consumer.
    live_stats: &'a Mutex<Vec<ConsumerStats>>,
}

impl<'a> RunDisplay<'a> {
    /// Creates the display. `step` is the time that a consumer spends on a batch.
    pub(super) fn new(
        progress: &'a Progress,
        live_stats: &'a Mutex<Vec<ConsumerStats>>,
        step: Duration,
    ) -> Self {
        let stall_watch = StallWatch::new(Instant::now(), step);
        Self { progress, rates: DeliveryRates::default(), stall_watch, live_stats }
    }

    async fn refresh(&mut self, job: &Job, consumers: u32) {
        let total = sum_stats(self.live_stats);
        self.progress.show_rates(&mut self.rates, &total, consumers);
        self.stall_watch.watch(job, total.rows).await;
    }
}

/// Runs all consumers until each is done or the user interrupts the run.
pub(super) async fn run(
    job: &Job,
    mut consumers: Vec<RunConsumer>,
    checkpoints: Option<&Checkpoints<'_>>,
    mut display: RunDisplay<'_>,
    stop: &CancellationToken,
) -> Result<(Vec<RunConsumer>, DeliveryEnd), Failure> {
    loop {
        consumers = run_until_pause(job, consumers, checkpoints.is_some(), &mut display, stop).await?;
        if let Some(checkpoints) = checkpoints {
            checkpoints.write(job, &consumers).await?;
        }
        if consumers.iter().all(|consumer| consumer.is_finished) {
            return Ok((consumers, DeliveryEnd::Complete));
        }
        if consumers.iter().all(RunConsumer::is_done) {
            return Ok((consumers, DeliveryEnd::Limit));
        }
        if stop.is_cancelled() {
            return Ok((consumers, DeliveryEnd::Interrupted));
        }
    }
}

/// Runs all consumers until each is done, a checkpoint is due, or the user interrupts the run.
async fn run_until_pause(
    job: &Job,
    consumers: Vec<RunConsumer>,
    has_checkpoints: bool,
    display: &mut RunDisplay<'_>,
    stop: &CancellationToken,
) -> Result<Vec<RunConsumer>, Failure> {
    let count = consumers.len() as u32;
    let pause = stop.child_token();
    let mut running = JoinSet::new();
    for consumer in consumers {
        running.spawn(consumer.run(pause.clone()));
    }
    let timer = sleep(if has_checkpoints { CHECKPOINT_INTERVAL } else { NEVER });
    tokio::pin!(timer);
    let mut refresh = interval(REFRESH_INTERVAL);
    let mut paused = Vec::new();
    let mut failure: Option<Failure> = None;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok((consumer, Ok(())))) => paused.push(consumer),
                Some(Ok((_, Err(error)))) => {
                    failure.get_or_insert(error.into());
                    pause.cancel();
                }
                Some(Err(error)) => {
                    failure.get_or_insert(Failure::failed(format!("a consumer stopped: {error}")));
                    pause.cancel();
                }
            },
            () = &mut timer, if !pause.is_cancelled() => pause.cancel(),
            _ = refresh.tick() => {
                display.refresh(job, count).await;
            }
        }
    }
    paused.sort_by_key(|consumer: &RunConsumer| consumer.index);
    failure.map_or(Ok(paused), Err)
}

fn sum_stats(live_stats: &Mutex<Vec<ConsumerStats>>) -> ConsumerStats {
    let mut total = ConsumerStats::default();
    for stats in live_stats.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        total.add(stats);
    }
    total
}

/// Waits until every worker has sent its last report on the ended job, or until the timeout.
pub(crate) async fn wait_until_settled(job: &Job) -> Result<JobStatus, Failure> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let status = job.status().await?;
        if (status.state.is_ended() && status.settled) || Instant::now() >= deadline {
            return Ok(status);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Cancels a job, so that workers stop computing its rows. Errors are only logged, because the job may have ended or
/// the coordinator may be unreachable.
pub(crate) async fn cancel_job(job: &Job) {
    match tokio::time::timeout(SETTLE_TIMEOUT, job.cancel()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, job = %job.id(), "cannot cancel the job"),
        Err(_) => {
            tracing::warn!(job = %job.id(), "cannot cancel the job: the coordinator is not responding")
        }
    }
}

/// The audit that all consumers of a run share.
pub(super) type SharedAudit = Arc<Mutex<feedline_client::audit::Audit>>;
