//! A consumer: the user's side of a feed.

use std::sync::Arc;

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerStats, JobState};
use feedline_data::mix::MixChange;
use feedline_pinned::Gpu;
use feedline_proto::CoordinatorService;
use futures::Stream;
use futures::stream;
use metrics::gauge;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use crate::batch::{Batch, BatchInfo};
use crate::error::ClientError;
use crate::feed::{ConsumerIdentity, Feed, TakeResult};
use crate::fetch::FetchContext;
use crate::metrics::{COPY_SECONDS_TOTAL, STALL_SECONDS_TOTAL, STEP_SECONDS_TOTAL};
use crate::origin::Origins;
use crate::receive_pool::ReceivePool;
use crate::session::{Session, SharedFeed};
use crate::settings::ClientSettings;
use crate::workers::WorkerDirectory;

/// One rank of a training job. Its background task reports and fetches until the consumer is closed or dropped.
pub struct Consumer {
    shared: Arc<SharedFeed>,
    held: watch::Receiver<u64>,
    /// When the user got the latest batch, until the next is asked for.
    handed: Option<Instant>,
    /// Ends the task when the consumer is dropped.
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
        let pool = slabs(&settings);
        let waits = [settings.patience_ms, settings.admission_ms].map(Duration::from_millis);
        let span = tracing::info_span!("consumer", job = %identity.job, consumer = identity.consumer);
        let job = identity.job;
        let shared = SharedFeed::new(Feed::new(identity, settings, Instant::now()));
        let context = FetchContext { job, workers, shared: Arc::clone(&shared), pool };
        let (sender, held) = watch::channel(0);
        let stop = CancellationToken::new();
        let session = Session::new(coordinator, context, waits, sender);
        let task = tokio::spawn(session.run(stop.clone()).instrument(span));
        Self { shared, held, handed: None, stop: stop.drop_guard(), task }
    }

    /// The next batch; `None` once nothing more comes, which the coordinator knows by then. Dropping the future loses
    /// nothing.
    ///
    /// Of several streams it is the one that is furthest behind, so all batches of a step come before those of the next. In an elastic
    /// job it waits while this rank has no slot, until it gets one or the job ends; a slot that goes to another rank ends
    /// behind the step that is being delivered.
    ///
    /// # Errors
    /// When nothing more can come; asking again gives the same error.
    pub async fn next(&mut self) -> Result<Option<Batch>, ClientError> {
        self.end_step();
        let mut stall = None;
        loop {
            let taken = self.shared.feed().take(Instant::now());
            match taken {
                TakeResult::Batch(taken) => {
                    drop(stall);
                    self.shared.wake_session();
                    let batch = taken.join().map_err(|message| self.broken(message))?;
                    self.handed = Some(Instant::now());
                    return Ok(Some(batch));
                }
                TakeResult::Waiting => {
                    stall.get_or_insert_with(|| Stall::begin(&self.shared));
                    self.shared.wake_session();
                    self.shared.ready().await;
                }
                TakeResult::Finished => {
                    self.flush().await?;
                    return Ok(None);
                }
                TakeResult::Failed(error) => {
                    if matches!(error, ClientError::JobFailed(_)) {
                        // The job has failed whether or not the coordinator can be told.
                        let _ = self.flush().await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// The next batch if it is here, without waiting; `None` when it is not, or nothing more comes: [`Self::next`] tells which.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn try_next(&mut self) -> Result<Option<Batch>, ClientError> {
        let taken = self.shared.feed().take(Instant::now());
        let TakeResult::Batch(taken) = taken else { return Ok(None) };
        self.end_step();
        self.shared.wake_session();
        let batch = taken.join().map_err(|message| self.broken(message))?;
        self.handed = Some(Instant::now());
        Ok(Some(batch))
    }

    /// The user asks for the next batch, or would have got it.
    fn end_step(&mut self) {
        let Some(handed) = self.handed.take() else { return };
        let step = handed.elapsed();
        self.shared.feed().add_step(step.as_nanos() as u64);
        gauge!(STEP_SECONDS_TOTAL).increment(step.as_secs_f64());
    }

    /// Notes time that went into copying batches to where the user wants them: a part of the time between batches.
    pub fn add_copy(&self, time: Duration) {
        self.shared.feed().add_copy(time.as_nanos() as u64);
        gauge!(COPY_SECONDS_TOTAL).increment(time.as_secs_f64());
    }

    /// Parts that do not go together are a defect of a worker; the rows are taken, so there is no way on.
    fn broken(&self, message: String) -> ClientError {
        let error = ClientError::Damaged { split: "of the last batch".to_owned(), message };
        self.shared.feed().set_fatal(error.clone());
        error
    }

    /// The batches as a stream. Ends after the last batch or an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Batch, ClientError>> + Send {
        stream::try_unfold(self, |mut consumer| async move {
            Ok(consumer.next().await?.map(|batch| (batch, consumer)))
        })
    }

    /// Says that the user takes a batch ahead of its loop, such as to copy it to a device meanwhile. Of use where other consumers ask
    /// where this one stands ([`crate::Job::places`]).
    pub fn set_ahead(&self) {
        self.shared.feed().set_ahead();
    }

    /// Deterministic mode: the next undelivered row of each owned stream. Empty until the dataset is known.
    pub fn positions(&self) -> Vec<(u32, StreamPosition)> {
        self.shared.feed().positions()
    }

    /// Relaxed mode: the offset of the next undelivered row of each split that this consumer holds.
    pub fn open_splits(&self) -> Vec<(SplitRef, u32)> {
        self.shared.feed().open()
    }

    /// Returns once the coordinator holds what has been delivered so far.
    ///
    /// # Errors
    /// When no coordinator answers for the client's patience, or the consumer was taken over.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let wanted = self.shared.feed().ask_for_flush();
        self.shared.wake_session();
        match self.held.wait_for(|held| *held >= wanted).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.shared.feed().fatal().unwrap_or(ClientError::Closed)),
        }
    }

    /// Reports what was delivered and ends the consumer.
    ///
    /// # Errors
    /// As [`Self::flush`]; the consumer is ended in any case.
    pub async fn close(mut self) -> Result<(), ClientError> {
        self.shared.feed().begin_end();
        let flushed = self.flush().await;
        let Self { stop, task, .. } = self;
        drop(stop);
        task.await.map_err(|_| ClientError::Closed)?;
        flushed
    }

    /// A view of it.
    pub fn view(&self) -> ConsumerView {
        ConsumerView { shared: Arc::clone(&self.shared) }
    }

    /// Whether nothing more comes, whatever the reason: [`Self::next`] tells it.
    pub fn is_over(&self) -> bool {
        let feed = self.shared.feed();
        feed.fatal().is_some() || feed.state().is_ended()
    }

    /// Leaves an elastic job: says what was delivered and gives the slots back. Other ranks go on with them right there, and nothing
    /// more comes here. Call it where a step is complete. In other jobs it is [`Self::flush`].
    ///
    /// # Errors
    /// As [`Self::flush`]; the slots then go to others once this rank counts as lost.
    pub async fn leave(&mut self) -> Result<(), ClientError> {
        self.shared.feed().leave();
        self.shared.wake_session();
        loop {
            {
                let feed = self.shared.feed();
                if let Some(error) = feed.fatal() {
                    return Err(error);
                }
                if feed.has_left() {
                    return Ok(());
                }
            }
            self.shared.ready().await;
        }
    }

    /// The streams that it delivers: in an elastic job its present slots.
    pub fn slots(&self) -> Vec<u32> {
        self.shared.feed().slots()
    }

    /// Says how long this rank takes for a batch of one slot, in place of what is measured between calls of [`Self::next`]: ranks of
    /// an elastic job get slots by it. Of use where ranks wait for each other after each batch, which makes all look alike.
    pub fn set_slot_time(&self, time: Duration) {
        self.shared.feed().set_slot_time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How the job stood when the coordinator answered last.
    pub fn state(&self) -> JobState {
        self.shared.feed().state()
    }

    /// What was delivered, the time that [`Self::next`] waited, and the time between its calls.
    pub fn stats(&self) -> ConsumerStats {
        self.shared.feed().stats()
    }

    /// How the weights of the job's mix have changed, as far as it tells what comes from `epoch` on: all that has come or been planned for this
    /// consumer goes by it.
    pub fn mix_from(&self, epoch: u32) -> Vec<MixChange> {
        self.shared.feed().mix_from(epoch).to_vec()
    }

    /// Lets origins go by the mix as this consumer has it.
    pub fn follow_mix(&self, origins: &mut Origins) {
        origins.remix(self.shared.feed().mix_from(0));
    }

    /// What is accounted for since the last batch: removed, skipped and dropped rows behind it.
    pub fn trailing(&self) -> BatchInfo {
        self.shared.feed().carried()
    }
}

/// Buffers to receive batches into: pinned, where they are copied to a GPU and its driver can be reached.
fn slabs(settings: &ClientSettings) -> Arc<ReceivePool> {
    let idle_bytes = settings.idle_bytes();
    match settings.gpu.map(Gpu::open) {
        None => ReceivePool::new(idle_bytes),
        Some(Ok(gpu)) => ReceivePool::pinned(gpu, idle_bytes, settings.buffer_bytes),
        Some(Err(error)) => {
            tracing::warn!(%error, "memory for batches cannot be pinned, so copies to the GPU take longer");
            ReceivePool::new(idle_bytes)
        }
    }
}

/// What can be seen and said of a consumer from elsewhere, also while it waits for a batch.
#[derive(Clone)]
pub struct ConsumerView {
    shared: Arc<SharedFeed>,
}

impl ConsumerView {
    /// As [`Consumer::stats`].
    pub fn stats(&self) -> ConsumerStats {
        self.shared.feed().stats()
    }

    /// As [`Consumer::slots`].
    pub fn slots(&self) -> Vec<u32> {
        self.shared.feed().slots()
    }

    /// As [`Consumer::mix_from`].
    pub fn mix_from(&self, epoch: u32) -> Vec<MixChange> {
        self.shared.feed().mix_from(epoch).to_vec()
    }
}

/// Counts the time until it is dropped as waiting, also when the waiting future is dropped.
struct Stall {
    shared: Arc<SharedFeed>,
}

impl Stall {
    fn begin(shared: &Arc<SharedFeed>) -> Self {
        shared.feed().begin_stall(Instant::now());
        Self { shared: Arc::clone(shared) }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let waited = self.shared.feed().end_stall(Instant::now());
        gauge!(STALL_SECONDS_TOTAL).increment(waited.as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
