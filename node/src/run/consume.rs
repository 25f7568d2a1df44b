//! Takes a job's batches: all consumers at once, paused together whenever the place is written down.

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
use super::report::DefectsReport;
use super::stall_watch::StallWatch;
use crate::failure::Failure;
use crate::progress::{Progress, Rates};

/// How often a job that is being prepared is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// How often the place is written down.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// A time that does not come.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// How often the progress line changes.
const REFRESH: Duration = Duration::from_millis(250);
/// Time for workers to tell what they did for an ended job.
const SETTLE: Duration = Duration::from_secs(2);

/// How delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEnd {
    /// Nothing is left.
    Complete,
    /// Each consumer has its share of the limit.
    Limit,
    /// The user ended it.
    Interrupted,
}

/// What the consumers of a run took.
pub(super) struct DeliveredRows {
    pub(super) seats: Vec<RunConsumer>,
    pub(super) end: DeliveryEnd,
    /// When the first batch was asked for.
    pub(super) requested: Instant,
    pub(super) audit: Option<AuditReport>,
    pub(super) defects: DefectsReport,
    /// How the job stood at the end.
    pub(super) status: JobStatus,
}

/// Waits until the dataset is known, or the job has ended. `None` when the user ends it before.
pub(super) async fn wait_until_ready(
    job: &Job,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Option<JobStatus>, Failure> {
    let mut silence = StallWatch::new(Instant::now(), Duration::ZERO);
    loop {
        let status = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            status = job.status() => status?,
        };
        if !matches!(status.state, JobState::Preparing { .. }) {
            return Ok(Some(status));
        }
        progress.show_state(&status.state);
        if matches!(status.state, JobState::Preparing { workers: 0, .. }) {
            silence.watch(job, 0).await;
        }
        sleep(LOOK).await;
    }
}

/// Where the place is written, and what was taken before this run.
pub(super) struct Checkpoints<'a> {
    /// The file.
    pub(super) path: &'a Path,
    /// Rows of earlier runs.
    pub(super) rows_before: u64,
}

impl Checkpoints<'_> {
    /// Writes down where the job stands. All seats must be paused.
    async fn write(&self, job: &Job, seats: &[RunConsumer]) -> Result<(), Failure> {
        // Before the dataset is known there is no place, and nothing was taken.
        let Some(position) = job.position().await? else { return Ok(()) };
        let rows = self.rows_before + seats.iter().map(|seat| seat.stats().rows).sum::<u64>();
        let file = PositionFile::new(position, &merge_digests(seats), rows);
        let path = self.path.to_owned();
        let written = tokio::task::spawn_blocking(move || file.write(&path)).await;
        written.map_err(|error| Failure::failed(format!("the position was not written: {error}")))?
    }
}

/// The digests of all consumers together.
pub(super) fn merge_digests(seats: &[RunConsumer]) -> Digests {
    let mut all = Digests::default();
    for seat in seats {
        all.streams.extend(seat.digests.streams.iter().map(|(stream, digest)| (*stream, digest.clone())));
        all.content.merge(&seat.digests.content);
    }
    all
}

/// What a user sees while rows flow, or do not.
pub(super) struct RunDisplay<'a> {
    progress: &'a Progress,
    rates: Rates,
    silence: StallWatch,
    /// What each consumer has.
    board: &'a Mutex<Vec<ConsumerStats>>,
}

impl<'a> RunDisplay<'a> {
    /// `step` is the time that a consumer spends on a batch.
    pub(super) fn new(progress: &'a Progress, board: &'a Mutex<Vec<ConsumerStats>>, step: Duration) -> Self {
        Self { progress, rates: Rates::default(), silence: StallWatch::new(Instant::now(), step), board }
    }

    async fn look(&mut self, job: &Job, consumers: u32) {
        let total = total(self.board);
        self.progress.show_rates(&mut self.rates, &total, consumers);
        self.silence.watch(job, total.rows).await;
    }
}

/// Lets all seats take batches until each is done or the user ends it.
pub(super) async fn run(
    job: &Job,
    mut seats: Vec<RunConsumer>,
    checkpoints: Option<&Checkpoints<'_>>,
    mut watch: RunDisplay<'_>,
    stop: &CancellationToken,
) -> Result<(Vec<RunConsumer>, DeliveryEnd), Failure> {
    loop {
        seats = run_until_pause(job, seats, checkpoints.is_some(), &mut watch, stop).await?;
        if let Some(checkpoints) = checkpoints {
            checkpoints.write(job, &seats).await?;
        }
        if seats.iter().all(|seat| seat.finished) {
            return Ok((seats, DeliveryEnd::Complete));
        }
        if seats.iter().all(RunConsumer::is_done) {
            return Ok((seats, DeliveryEnd::Limit));
        }
        if stop.is_cancelled() {
            return Ok((seats, DeliveryEnd::Interrupted));
        }
    }
}

/// Lets all seats take batches until each is done, it is time for a checkpoint, or the user ends it.
async fn run_until_pause(
    job: &Job,
    seats: Vec<RunConsumer>,
    checkpoint: bool,
    watch: &mut RunDisplay<'_>,
    stop: &CancellationToken,
) -> Result<Vec<RunConsumer>, Failure> {
    let consumers = seats.len() as u32;
    let pause = stop.child_token();
    let mut running = JoinSet::new();
    for seat in seats {
        running.spawn(seat.run(pause.clone()));
    }
    let timer = sleep(if checkpoint { CHECKPOINT } else { NEVER });
    tokio::pin!(timer);
    let mut refresh = interval(REFRESH);
    let mut paused = Vec::new();
    let mut failure: Option<Failure> = None;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok((seat, Ok(())))) => paused.push(seat),
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
                watch.look(job, consumers).await;
            }
        }
    }
    paused.sort_by_key(|seat: &RunConsumer| seat.index);
    failure.map_or(Ok(paused), Err)
}

fn total(board: &Mutex<Vec<ConsumerStats>>) -> ConsumerStats {
    let mut total = ConsumerStats::default();
    for stats in board.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        total.add(stats);
    }
    total
}

/// Waits a moment until every worker has told what it did for the ended job.
pub(crate) async fn wait_until_settled(job: &Job) -> Result<JobStatus, Failure> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let status = job.status().await?;
        if (status.state.is_ended() && status.settled) || Instant::now() >= deadline {
            return Ok(status);
        }
        sleep(LOOK).await;
    }
}

/// Ends a job that was not taken to its end, so that no worker goes on with it. It may have ended already, and the
/// coordinator may be gone.
pub(crate) async fn abandon(job: &Job) {
    match tokio::time::timeout(SETTLE, job.cancel()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, job = %job.id(), "the job was not cancelled"),
        Err(_) => {
            tracing::warn!(job = %job.id(), "the coordinator did not answer; the job was not cancelled")
        }
    }
}

/// The audit's state, shared with the seats.
pub(super) type SharedAudit = Arc<Mutex<feedline_client::audit::Audit>>;
