//! One consumer of a run: receives batches, and counts and digests their rows.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedline_client::audit::Audit;
use feedline_client::{Batch, BatchInfo, ClientError, Consumer};
use feedline_data::messages::ConsumerStats;
use feedline_data::pipeline::OrderMode;
use tokio_util::sync::CancellationToken;

use super::position::Digests;
use super::report::{MAX_LISTED, SkippedRowReport, SkippedRowsReport};
use super::step_time::StepTime;

/// Options that all consumers of a run share.
#[derive(Debug, Clone)]
pub(super) struct ConsumerOptions {
    /// Ordering mode of the job.
    pub(super) order: OrderMode,
    /// Whether to compute digests.
    pub(super) digest: bool,
    /// Time to spend on each batch.
    pub(super) step: StepTime,
    /// Records the delivered row ids, for `--audit`.
    pub(super) audit: Option<Arc<Mutex<Audit>>>,
    /// Counters of each consumer, for the progress line.
    pub(super) live_stats: Arc<Mutex<Vec<ConsumerStats>>>,
}

/// Time after the first batch that the steady rate excludes.
const WARM_UP: Duration = Duration::from_secs(2);

/// A consumer with its counters and digests.
pub(super) struct RunConsumer {
    pub(super) index: u32,
    consumer: Consumer,
    options: ConsumerOptions,
    /// Number of rows after which the consumer stops.
    row_limit: Option<u64>,
    /// Whether all rows have been delivered.
    pub(super) is_finished: bool,
    pub(super) digests: Digests,
    pub(super) skipped: SkippedRowsReport,
    /// First and last epoch of the received rows.
    pub(super) epochs: Option<RangeInclusive<u32>>,
    pub(super) first_batch: Option<Instant>,
    pub(super) last_batch: Option<Instant>,
    /// Arrival of the first batch after the warm-up, and the number of rows before it.
    pub(super) warm_up_end: Option<(Instant, u64)>,
}

impl RunConsumer {
    /// Creates a consumer, which continues from `digests` and stops after the batch that reaches `row_limit` rows.
    pub(super) fn new(
        index: u32,
        consumer: Consumer,
        options: ConsumerOptions,
        row_limit: Option<u64>,
        digests: Digests,
    ) -> Self {
        Self {
            index,
            consumer,
            options,
            row_limit,
            is_finished: false,
            digests,
            skipped: SkippedRowsReport::default(),
            epochs: None,
            first_batch: None,
            last_batch: None,
            warm_up_end: None,
        }
    }

    /// Returns the counters.
    pub(super) fn stats(&self) -> ConsumerStats {
        self.consumer.stats()
    }

    /// Leaves an elastic job.
    pub(super) async fn leave(&mut self) -> Result<(), ClientError> {
        self.consumer.leave().await
    }

    /// Whether the consumer has received all its batches.
    pub(super) fn is_done(&self) -> bool {
        self.is_finished || self.row_limit.is_some_and(|limit| self.stats().rows >= limit)
    }

    /// Receives batches until the consumer is done or paused. Then reports its position to the coordinator.
    pub(super) async fn run(mut self, pause: CancellationToken) -> (Self, Result<(), ClientError>) {
        let result = self.receive(&pause).await;
        (self, result)
    }

    async fn receive(&mut self, pause: &CancellationToken) -> Result<(), ClientError> {
        while !self.is_done() {
            let next = tokio::select! {
                biased;
                () = pause.cancelled() => break,
                next = self.consumer.next() => next?,
            };
            let Some(batch) = next else {
                self.is_finished = true;
                return Ok(());
            };
            self.on_batch(&batch);
            drop(batch);
            let elapsed = self.first_batch.map(|first| first.elapsed());
            let step = self.options.step.at(elapsed.unwrap_or_default());
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
        if self.warm_up_end.is_none() && now - first >= WARM_UP {
            self.warm_up_end = Some((now, self.stats().rows));
        }
        if self.options.digest {
            // In relaxed mode, all consumers share one stream, and each consumer has its own order of rows.
            let key = match self.options.order {
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
        let mut live_stats = self.options.live_stats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = live_stats.get_mut(self.index as usize) {
            *stats = self.consumer.stats();
        }
        drop(live_stats);
        self.last_batch = Some(Instant::now());
    }

    /// Counts the rows that were skipped after the last batch. Must be called once, at the end.
    pub(super) fn account_trailing(&mut self) {
        let trailing = self.consumer.trailing();
        self.account(&trailing);
    }

    fn account(&mut self, info: &BatchInfo) {
        if let Some(audit) = &self.options.audit {
            audit.lock().unwrap_or_else(PoisonError::into_inner).add(info);
        }
        self.skipped.count += info.skipped.len() as u64;
        let remaining = MAX_LISTED.saturating_sub(self.skipped.first.len());
        self.skipped.first.extend(info.skipped.iter().take(remaining).map(|row| SkippedRowReport {
            row: row.row_id,
            shard: row.shard.clone(),
            offset: row.offset,
            reason: row.reason.clone(),
        }));
    }
}
