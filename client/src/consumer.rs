//! The consumer, through which a rank receives its batches.

use std::ops::Deref;
use std::sync::Arc;

use feedline_common::metric_table::start_counters;
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerStats, JobState};
use feedline_data::mix::MixChange;
use feedline_pinned::Gpu;
use feedline_proto::CoordinatorService;
use metrics::gauge;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use crate::batch::{Batch, BatchInfo};
use crate::error::ClientError;
use crate::feature_cache::FeatureCache;
use crate::fetch::FetchContext;
use crate::metrics::{COPY_SECONDS_TOTAL, METRICS, STALL_SECONDS_TOTAL, STEP_SECONDS_TOTAL};
use crate::origin::Origins;
use crate::receive_pool::ReceivePool;
use crate::session::{Session, SessionTimeouts};
use crate::settings::ClientSettings;
use crate::shared_state::SharedState;
use crate::state::{ConsumerIdentity, ConsumerState, TakeResult};
use crate::workers::WorkerDirectory;

/// One rank of a training job. Its background task reports and fetches until the consumer is closed or dropped.
pub struct Consumer {
    view: ConsumerView,
    acknowledged: watch::Receiver<u64>,
    /// Time at which the user received the last batch. `None` after the user has requested the next batch.
    delivered_at: Option<Instant>,
    /// Stops the task when the consumer is dropped.
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Consumer {
    pub(crate) fn start(
        identity: ConsumerIdentity,
        coordinator: Arc<dyn CoordinatorService>,
        workers: Arc<dyn WorkerDirectory>,
        settings: ClientSettings,
    ) -> Self {
        start_counters(METRICS);
        let pool = create_receive_pool(&settings);
        let timeouts = SessionTimeouts {
            unavailable: Duration::from_millis(settings.patience_ms),
            busy: Duration::from_millis(settings.admission_ms),
            version_mismatch: Duration::from_millis(settings.upgrade_ms),
        };
        let span = tracing::info_span!("consumer", job = %identity.job, consumer = identity.consumer);
        let job = identity.job;
        let limit_bytes = settings.feature_cache_bytes;
        let cache = (limit_bytes > 0).then(|| FeatureCache::new(job, Arc::clone(&coordinator), limit_bytes));
        let shared = SharedState::new(ConsumerState::new(identity, settings, Instant::now()));
        let context = FetchContext { job, workers, shared: Arc::clone(&shared), pool, cache };
        let (sender, acknowledged) = watch::channel(0);
        let stop = CancellationToken::new();
        let session = Session::new(coordinator, context, timeouts, sender);
        let task = tokio::spawn(session.run(stop.clone()).instrument(span));
        let view = ConsumerView { shared };
        Self { view, acknowledged, delivered_at: None, stop: stop.drop_guard(), task }
    }

    /// Waits for the next batch. Returns `None` after the last batch, when the coordinator has acknowledged all deliveries.
    /// This method is cancel safe: dropping the future loses no batch.
    ///
    /// The batch comes from the stream that is furthest behind, so all batches of a step precede those of the next
    /// step. In an elastic job, a rank without a slot waits until it receives one or the job ends. A revoked slot stops
    /// after the current step.
    ///
    /// # Errors
    /// Returns an error if no further batch can be delivered. Later calls return the same error.
    pub async fn next(&mut self) -> Result<Option<Batch>, ClientError> {
        self.end_step();
        let mut stall = None;
        loop {
            let taken = self.view.shared.lock().take(Instant::now());
            match taken {
                TakeResult::Batch(taken) => {
                    drop(stall);
                    self.view.shared.notify_session();
                    let batch = taken.join().map_err(|message| self.fail_damaged(message))?;
                    self.delivered_at = Some(Instant::now());
                    return Ok(Some(batch));
                }
                TakeResult::Pending => {
                    stall.get_or_insert_with(|| Stall::begin(&self.view.shared));
                    self.view.shared.notify_session();
                    let deadline = self.view.shared.lock().verdict_deadline();
                    let deadline = deadline.filter(|deadline| *deadline > Instant::now());
                    let notified = self.view.shared.batch_notified();
                    match deadline {
                        Some(deadline) => drop(tokio::time::timeout_at(deadline, notified).await),
                        None => notified.await,
                    }
                }
                TakeResult::Finished => {
                    self.flush().await?;
                    return Ok(None);
                }
                TakeResult::Failed(error) => {
                    if matches!(error, ClientError::JobFailed(_)) {
                        // The job's error matters more than a failed flush.
                        let _ = self.flush().await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the next batch if it has arrived. `None` means that the batch has not arrived yet, or that there are no
    /// more batches. Use [`Self::next`] to distinguish these cases.
    ///
    /// # Errors
    /// Returns an error if no further batch can be delivered.
    pub fn try_next(&mut self) -> Result<Option<Batch>, ClientError> {
        let taken = self.view.shared.lock().take(Instant::now());
        let TakeResult::Batch(taken) = taken else { return Ok(None) };
        self.end_step();
        self.view.shared.notify_session();
        let batch = taken.join().map_err(|message| self.fail_damaged(message))?;
        self.delivered_at = Some(Instant::now());
        Ok(Some(batch))
    }

    /// Adds the time since the last batch to the user's step time.
    fn end_step(&mut self) {
        let Some(delivered_at) = self.delivered_at.take() else { return };
        let step = delivered_at.elapsed();
        self.view.shared.lock().add_step(step.as_nanos() as u64);
        gauge!(STEP_SECONDS_TOTAL).increment(step.as_secs_f64());
    }

    /// Adds time that the user spent copying batches, for example to a GPU. This time is part of the step time.
    pub fn add_copy(&self, time: Duration) {
        self.view.shared.lock().add_copy(time.as_nanos() as u64);
        gauge!(COPY_SECONDS_TOTAL).increment(time.as_secs_f64());
    }

    /// Fails the consumer because the parts of a batch have different columns. The consumer cannot recover, because the
    /// rows are already taken.
    fn fail_damaged(&self, message: String) -> ClientError {
        let error = ClientError::Damaged { split: "of the last batch".to_owned(), message };
        self.view.shared.lock().fail(error.clone());
        error
    }

    /// Declares that the user prefetches one batch, for example to copy it to a device during a step. The consumer's
    /// answers to [`crate::Job::positions_at`] then exclude the prefetched batch.
    pub fn set_prefetching(&self) {
        self.view.shared.lock().set_prefetching();
    }

    /// Defers delivery: from now on, a batch counts as delivered when the next one is requested. Until then, [`Self::flush`] and
    /// [`Self::close`] exclude it, and another session of the consumer receives it again. Use this to pass batches on over a
    /// connection that can break.
    pub fn defer_delivery(&self) {
        self.view.shared.lock().defer_delivery();
    }

    /// Returns the next undelivered row of each stream. Empty in relaxed mode, and until the dataset is indexed.
    pub fn positions(&self) -> Vec<(u32, StreamPosition)> {
        self.view.shared.lock().positions()
    }

    /// Waits until the coordinator has acknowledged all deliveries.
    ///
    /// # Errors
    /// Returns an error if no coordinator responds within the client's timeout, or if another session supersedes this
    /// session.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let version = self.view.shared.lock().request_flush();
        self.view.shared.notify_session();
        match self.acknowledged.wait_for(|acknowledged| *acknowledged >= version).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.view.shared.lock().fatal_error().unwrap_or(ClientError::Closed)),
        }
    }

    /// Flushes and closes the consumer.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::flush`]. The consumer is closed even after an error.
    pub async fn close(mut self) -> Result<(), ClientError> {
        self.view.shared.lock().begin_closing();
        let flushed = self.flush().await;
        let Self { stop, task, .. } = self;
        drop(stop);
        task.await.map_err(|_| ClientError::Closed)?;
        flushed
    }

    /// Returns a view that other threads can use while this thread waits for a batch.
    pub fn view(&self) -> ConsumerView {
        self.view.clone()
    }

    /// Whether the job has ended or the consumer has failed. [`Self::next`] returns the reason.
    pub fn is_ended(&self) -> bool {
        let state = self.view.shared.lock();
        state.fatal_error().is_some() || state.job_state().is_ended()
    }

    /// Leaves an elastic job between two steps: reports all deliveries and releases the slots. Other ranks continue at the
    /// released positions. In other jobs, this is [`Self::flush`].
    ///
    /// # Errors
    /// Returns the same errors as [`Self::flush`]. After an error, the coordinator grants the slots to other ranks when
    /// it considers this rank lost.
    pub async fn leave(&mut self) -> Result<(), ClientError> {
        self.view.shared.lock().leave();
        self.view.shared.notify_session();
        loop {
            {
                let state = self.view.shared.lock();
                if let Some(error) = state.fatal_error() {
                    return Err(error);
                }
                if state.has_left() {
                    return Ok(());
                }
            }
            self.view.shared.batch_notified().await;
        }
    }

    /// Sets the time that this rank needs for a batch of one slot. This time replaces the measured time between calls
    /// to [`Self::next`]. The coordinator of an elastic job grants more slots to faster ranks. Set the time if ranks
    /// synchronize after each batch, because their measured times are then equal.
    pub fn set_batch_time(&self, time: Duration) {
        self.view.shared.lock().set_batch_time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the state of the job in the coordinator's last reply.
    pub fn state(&self) -> JobState {
        self.view.shared.lock().job_state()
    }

    /// Updates the mix weights in `origins` to the weights of this consumer.
    pub fn update_mix(&self, origins: &mut Origins) {
        origins.set_mix(self.view.shared.lock().mix_changes_from(0));
    }
}

/// Creates the pool of receive buffers. The buffers are pinned if the settings contain a GPU and its driver is available.
fn create_receive_pool(settings: &ClientSettings) -> Arc<ReceivePool> {
    let idle_bytes = settings.idle_bytes();
    match settings.gpu.map(Gpu::open) {
        None => ReceivePool::new(idle_bytes),
        Some(Ok(gpu)) => ReceivePool::pinned(gpu, idle_bytes, settings.buffer_bytes),
        Some(Err(error)) => {
            tracing::warn!(%error, "cannot pin memory for batches; copies to the GPU take longer");
            ReceivePool::new(idle_bytes)
        }
    }
}

/// A view of a consumer for other threads, usable while the consumer waits for a batch.
#[derive(Clone)]
pub struct ConsumerView {
    shared: Arc<SharedState>,
}

impl ConsumerView {
    /// Returns the delivered rows, batches and bytes, the time that [`Consumer::next`] waited, and the time between its calls.
    pub fn stats(&self) -> ConsumerStats {
        self.shared.lock().stats()
    }

    /// Returns the streams whose batches the consumer currently delivers. In an elastic job, streams are slots.
    pub fn slots(&self) -> Vec<u32> {
        self.shared.lock().active_slots()
    }

    /// Returns the mix changes that affect rows from `epoch` on. They apply to all rows that were delivered to the
    /// consumer or planned for it.
    pub fn mix_changes_from(&self, epoch: u32) -> Vec<MixChange> {
        self.shared.lock().mix_changes_from(epoch).to_vec()
    }

    /// Returns the rows since the last batch that are not part of any batch: removed, skipped and dropped rows.
    pub fn trailing(&self) -> BatchInfo {
        self.shared.lock().carried()
    }
}

impl Deref for Consumer {
    type Target = ConsumerView;

    fn deref(&self) -> &ConsumerView {
        &self.view
    }
}

/// Measures a stall until this value is dropped, even if the waiting future is dropped.
struct Stall {
    shared: Arc<SharedState>,
}

impl Stall {
    fn begin(shared: &Arc<SharedState>) -> Self {
        shared.lock().begin_stall(Instant::now());
        Self { shared: Arc::clone(shared) }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let stall = self.shared.lock().end_stall(Instant::now());
        gauge!(STALL_SECONDS_TOTAL).increment(stall.as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
