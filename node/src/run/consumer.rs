//! One consumer of a run: takes batches and counts what they hold.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedline_client::audit::Audit;
use feedline_client::{Batch, BatchInfo, ClientError, Consumer};
use feedline_data::messages::ConsumerStats;
use feedline_data::pipeline::OrderMode;
use tokio_util::sync::CancellationToken;

use super::position::Digests;
use super::report::{LISTED, SkippedRowReport, SkippedRowsReport};
use super::step_time::StepTime;

/// What every consumer of a run is told.
#[derive(Debug, Clone)]
pub(super) struct ConsumerOptions {
    /// Order mode of the job.
    pub(super) order: OrderMode,
    /// Whether digests are computed.
    pub(super) digest: bool,
    /// Time that a training step takes.
    pub(super) step: StepTime,
    /// Where row ids are counted.
    pub(super) audit: Option<Arc<Mutex<Audit>>>,
    /// Where the progress line finds what each consumer has.
    pub(super) board: Arc<Mutex<Vec<ConsumerStats>>>,
}

/// Time after the first batch in which rates still rise.
const START_UP: Duration = Duration::from_secs(2);

/// A consumer and what it has taken.
pub(super) struct RunConsumer {
    pub(super) index: u32,
    consumer: Consumer,
    instructions: ConsumerOptions,
    /// Rows after which it stops.
    share: Option<u64>,
    /// Whether nothing more comes.
    pub(super) finished: bool,
    pub(super) digests: Digests,
    pub(super) skipped: SkippedRowsReport,
    /// First and last epoch that rows came from.
    pub(super) epochs: Option<RangeInclusive<u32>>,
    pub(super) first_batch: Option<Instant>,
    pub(super) last_batch: Option<Instant>,
    /// When the first batch after the start-up came, and the rows up to it.
    pub(super) warm_from: Option<(Instant, u64)>,
}

impl RunConsumer {
    /// Consumer `index`, which stops at the batch that reaches `share` rows, going on from `digests`.
    pub(super) fn new(
        index: u32,
        consumer: Consumer,
        instructions: ConsumerOptions,
        share: Option<u64>,
        digests: Digests,
    ) -> Self {
        Self {
            index,
            consumer,
            instructions,
            share,
            finished: false,
            digests,
            skipped: SkippedRowsReport::default(),
            epochs: None,
            first_batch: None,
            last_batch: None,
            warm_from: None,
        }
    }

    /// What it has received.
    pub(super) fn stats(&self) -> ConsumerStats {
        self.consumer.stats()
    }

    /// Gives its slots of an elastic job back.
    pub(super) async fn leave(&mut self) -> Result<(), ClientError> {
        self.consumer.leave().await
    }

    /// Whether it takes no further batch.
    pub(super) fn is_done(&self) -> bool {
        self.finished || self.share.is_some_and(|share| self.stats().rows >= share)
    }

    /// Takes batches until it is done or paused; the coordinator knows then what was taken.
    pub(super) async fn run(mut self, pause: CancellationToken) -> (Self, Result<(), ClientError>) {
        let result = self.take(&pause).await;
        (self, result)
    }

    async fn take(&mut self, pause: &CancellationToken) -> Result<(), ClientError> {
        while !self.is_done() {
            let next = tokio::select! {
                biased;
                () = pause.cancelled() => break,
                next = self.consumer.next() => next?,
            };
            let Some(batch) = next else {
                self.finished = true;
                return Ok(());
            };
            self.on_batch(&batch);
            drop(batch);
            let elapsed = self.first_batch.map(|first| first.elapsed());
            let step = self.instructions.step.at(elapsed.unwrap_or_default());
            if !step.is_zero() {
                tokio::select! {
                    () = pause.cancelled() => {}
                    () = tokio::time::sleep(step) => {}
                }
            }
        }
        self.consumer.flush().await
    }

    fn on_batch(&mut self, batch: &Batch) {
        let now = Instant::now();
        let first = *self.first_batch.get_or_insert(now);
        if self.warm_from.is_none() && now - first >= START_UP {
            self.warm_from = Some((now, self.stats().rows));
        }
        if self.instructions.digest {
            // In relaxed mode there is one stream for all, and each consumer has an order of its own.
            let key = match self.instructions.order {
                OrderMode::Deterministic => batch.info.stream,
                OrderMode::Relaxed => self.index,
            };
            self.digests.streams.entry(key).or_default().add(&batch.records);
            self.digests.content.add(&batch.records);
        }
        if batch.info.rows > 0 {
            let epoch = batch.info.epoch;
            let known = self.epochs.take().unwrap_or(epoch..=epoch);
            self.epochs = Some(epoch.min(*known.start())..=epoch.max(*known.end()));
        }
        self.account(&batch.info);
        let mut board = self.instructions.board.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = board.get_mut(self.index as usize) {
            *place = self.consumer.stats();
        }
        drop(board);
        self.last_batch = Some(Instant::now());
    }

    /// Counts what came behind the last batch without rows of its own. Once, at the end.
    pub(super) fn account_trailing(&mut self) {
        let trailing = self.consumer.trailing();
        self.account(&trailing);
    }

    fn account(&mut self, info: &BatchInfo) {
        if let Some(audit) = &self.instructions.audit {
            audit.lock().unwrap_or_else(PoisonError::into_inner).add(info);
        }
        self.skipped.count += info.skipped.len() as u64;
        let room = LISTED.saturating_sub(self.skipped.first.len());
        self.skipped.first.extend(info.skipped.iter().take(room).map(|row| SkippedRowReport {
            row: row.row_id,
            shard: row.shard.clone(),
            offset: row.offset,
            reason: row.reason.clone(),
        }));
    }
}
