//! The batch server: sends finished pieces to consumers, within their credit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::services::{
    FeatureRowsRequest, FetchOpen, FetchRequest, Frame, GatherRequest, PieceHeader, WorkerService,
};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::{Engine, FinishedPiece, JobContext, OpenFetch, PieceLookup};
use crate::feature_rows::feature_frames;
use crate::fetch_limit::{FetchLimit, FetchPermit};
use crate::gather_server::GatherServer;
use crate::metrics;
use crate::tickets::Tickets;

/// Maximum number of frames per fetch that wait for the transport. A frame is the header or the data of a piece.
const FRAMES_AHEAD: usize = 2;
/// Maximum time that a fetch waits for its lease. The consumer's plan may arrive before the worker's plan.
const LEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which a waiting consumer receives a progress frame, if the worker makes progress on its split.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the pieces of the engine to consumers.
pub(crate) struct BatchServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) gather: GatherServer,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) fetch_limit: FetchLimit,
    pub(crate) tasks: TaskTracker,
    /// Cancels all fetches when the worker stops, even if their consumers have stopped reading.
    pub(crate) stop: CancellationToken,
}

#[async_trait]
impl WorkerService for BatchServer {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let open = match requests.next().await {
            Some(FetchRequest::Open(open)) => open,
            Some(FetchRequest::Features(request)) => return self.send_features(&request),
            Some(FetchRequest::Credit { .. }) | None => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Invalid,
                    "invalid fetch: the first request must name a split or a feature",
                ));
            }
        };
        let ticket = self.tickets.check(&open)?;
        let permit = self.fetch_limit.acquire(ticket.as_ref())?;
        let split = open_fetch(&self.engine, &open).await?;
        let requests = requests.fuse().boxed();
        metrics::count_fetch();
        let (frames, receiver) = mpsc::channel(FRAMES_AHEAD);
        let credit = open.credit_bytes;
        let fetch = Fetch { engine: Arc::clone(&self.engine), open, split, frames, credit, _permit: permit };
        let stop = self.stop.clone();
        self.tasks.spawn(async move { fetch.run(requests, stop).await });
        Ok(ReceiverStream::new(receiver).boxed())
    }

    async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        self.gather.gather(request).await
    }
}

impl BatchServer {
    /// Sends rows of a feature. The stream ends when the worker stops.
    fn send_features(
        &self,
        request: &FeatureRowsRequest,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let ticket = self.tickets.check_of_job(request.job, &request.ticket)?;
        let permit = self.fetch_limit.acquire(ticket.as_ref())?;
        let frames = feature_frames(&self.engine, request)?;
        metrics::count_fetch();
        let frames = stream::iter(frames).map(move |frame| {
            // The fetch counts against the limit until the stream is dropped.
            let _permit = &permit;
            Ok(frame)
        });
        Ok(frames.take_until(self.stop.clone().cancelled_owned()).boxed())
    }
}

/// Opens a fetch. Waits up to [`LEASE_TIMEOUT`] for the lease of its split.
async fn open_fetch(engine: &Arc<Engine>, open: &FetchOpen) -> Result<OpenFetch, ServiceError> {
    let deadline = Instant::now() + LEASE_TIMEOUT;
    let opened = engine.open_fetch((open.job, open.split), open.start_offset, deadline).await;
    opened.ok_or_else(|| {
        ServiceError::new(
            ServiceErrorKind::NotFound,
            format!("this worker has no lease for split {} of job {}", open.split.ordinal, open.job),
        )
    })
}

/// The outcome of waiting for credit.
enum CreditWait {
    Received,
    /// The consumer sends no more requests.
    Ended,
    /// The consumer has disconnected, or has sent an invalid request.
    Disconnected,
}

struct Fetch {
    engine: Arc<Engine>,
    open: FetchOpen,
    split: OpenFetch,
    frames: mpsc::Sender<Result<Frame, ServiceError>>,
    /// Bytes that the consumer allows this fetch to send.
    credit: u64,
    _permit: FetchPermit,
}

impl Fetch {
    async fn run(mut self, requests: BoxStream<'static, FetchRequest>, stop: CancellationToken) {
        // `None` means that the consumer has disconnected or the worker is stopping. Neither case needs a response.
        let _ = stop.run_until_cancelled(self.serve(requests)).await;
        self.engine.close_fetch(self.split);
    }

    /// Sends pieces until the split ends. Returns `None` if the consumer disconnects.
    async fn serve(&mut self, mut requests: BoxStream<'static, FetchRequest>) -> Option<()> {
        let mut from = self.open.start_offset;
        let mut has_sent_schema = false;
        // A consumer that has closed its request stream still receives pieces up to its credit.
        let mut may_receive_credit = true;
        let frames = self.frames.clone();
        let mut progress_timer = tokio::time::interval(PROGRESS_INTERVAL);
        progress_timer.reset();
        progress_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_progress = 0;
        loop {
            let engine = Arc::clone(&self.engine);
            let change = Arc::clone(&self.split.changed);
            let changed = change.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.credit == 0 {
                self.require_credit(&mut requests).await?;
                continue;
            }
            match engine.next_piece(&self.split, from) {
                PieceLookup::Piece(job, piece) => {
                    if !std::mem::replace(&mut has_sent_schema, true) {
                        self.send(Frame::Schema(Arc::clone(&job.compiled.output_arrow))).await?;
                    }
                    from = piece.header.end;
                    let bytes = piece.data.len() as u64;
                    let smaller = self.without_cached_rows(&job, &piece).await;
                    let (header, data) =
                        smaller.unwrap_or_else(|| (piece.header.clone(), piece.data.clone()));
                    self.send(Frame::Piece(header)).await?;
                    // The header contains the size of the piece, so that the consumer can grant enough credit.
                    while self.credit < bytes {
                        self.require_credit(&mut requests).await?;
                    }
                    self.credit -= bytes;
                    metrics::count_sent(piece.header.rows, data.len() as u64, piece.header.skipped.len());
                    drop(piece);
                    if !data.is_empty() {
                        self.send(Frame::Chunk { offset: 0, data }).await?;
                    }
                }
                PieceLookup::Failed(message) => return self.send(Frame::Failed(message)).await,
                PieceLookup::End(job) => {
                    if !has_sent_schema {
                        self.send(Frame::Schema(Arc::clone(&job.compiled.output_arrow))).await?;
                    }
                    return self.send(Frame::End).await;
                }
                PieceLookup::Unknown => {
                    let message = format!(
                        "this worker no longer has a lease for split {} of job {}",
                        self.open.split.ordinal, self.open.job
                    );
                    return self
                        .frames
                        .send(Err(ServiceError::new(ServiceErrorKind::NotFound, message)))
                        .await
                        .ok();
                }
                PieceLookup::Wait => tokio::select! {
                    () = changed => {}
                    credit = self.wait_for_credit(&mut requests), if may_receive_credit => match credit {
                        CreditWait::Received => {}
                        CreditWait::Ended => may_receive_credit = false,
                        CreditWait::Disconnected => return None,
                    },
                    () = frames.closed() => return None,
                    _ = progress_timer.tick() => {
                        let progress = engine.progress(&self.split);
                        if std::mem::replace(&mut last_progress, progress) != progress {
                            self.send(Frame::Working).await?;
                        }
                    }
                },
            }
        }
    }

    /// Copies a piece without the rows that the consumer has. Returns `None` if the consumer needs the whole piece.
    async fn without_cached_rows(
        &self,
        job: &Arc<JobContext>,
        piece: &Arc<FinishedPiece>,
    ) -> Option<(PieceHeader, Bytes)> {
        if self.open.cached_features.is_empty() || piece.features.is_none() {
            return None;
        }
        let cached = self.open.cached_features.clone();
        let (job, piece) = (Arc::clone(job), Arc::clone(piece));
        let copy = move || piece.features.as_ref()?.without_rows(&job, &piece.header, &cached);
        tokio::task::spawn_blocking(copy).await.ok().flatten()
    }

    /// Waits for credit. Returns `None` if the consumer sends no more credit.
    async fn require_credit(&mut self, requests: &mut BoxStream<'static, FetchRequest>) -> Option<()> {
        matches!(self.wait_for_credit(requests).await, CreditWait::Received).then_some(())
    }

    /// Waits for the next request from the consumer.
    async fn wait_for_credit(&mut self, requests: &mut BoxStream<'static, FetchRequest>) -> CreditWait {
        let request = tokio::select! {
            request = requests.next() => request,
            () = self.frames.closed() => return CreditWait::Disconnected,
        };
        match request {
            Some(FetchRequest::Credit { bytes }) => {
                self.credit = self.credit.saturating_add(bytes);
                CreditWait::Received
            }
            Some(FetchRequest::Open(_) | FetchRequest::Features(_)) => CreditWait::Disconnected,
            None => CreditWait::Ended,
        }
    }

    async fn send(&self, frame: Frame) -> Option<()> {
        self.frames.send(Ok(frame)).await.ok()
    }
}
