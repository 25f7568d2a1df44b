//! The batch server: hands finished pieces to consumers as their credit allows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::services::{FetchOpen, FetchRequest, Frame, WorkerService};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::{Engine, OpenFetch, PieceLookup};
use crate::fetch_limit::{FetchLimit, FetchPermit};
use crate::metrics;
use crate::tickets::Tickets;

/// Frames between the engine and the transport; each is a piece's header or its whole data, so the bound is on pieces.
const FRAMES_AHEAD: usize = 2;
/// A lease may arrive at the consumer before it arrives here.
const LEASE_PATIENCE: Duration = Duration::from_millis(500);
/// A consumer that waits is told as often as this that its split goes on, if it does.
const SIGN_OF_WORK: Duration = Duration::from_secs(1);

/// Serves the engine's pieces.
pub(crate) struct BatchServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) room: FetchLimit,
    pub(crate) tasks: TaskTracker,
    /// Ends the fetches of a worker that stops, whether their consumers read or not.
    pub(crate) stop: CancellationToken,
}

#[async_trait]
impl WorkerService for BatchServer {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "a fetch must begin by naming its split",
            ));
        };
        let ticket = self.tickets.check(&open)?;
        let place = self.room.enter(ticket.as_ref())?;
        let OpenFetch { number, changed } = open_fetch(&self.engine, &open).await?;
        let requests = requests.fuse().boxed();
        metrics::count_fetch();
        let (frames, receiver) = mpsc::channel(FRAMES_AHEAD);
        let credit = open.credit_bytes;
        let fetch =
            Fetch { engine: Arc::clone(&self.engine), open, number, changed, frames, credit, _place: place };
        let stop = self.stop.clone();
        self.tasks.spawn(async move { fetch.run(requests, stop).await });
        Ok(ReceiverStream::new(receiver).boxed())
    }
}

/// Registers the fetch, waiting a moment for a lease that has not arrived yet.
async fn open_fetch(engine: &Arc<Engine>, open: &FetchOpen) -> Result<OpenFetch, ServiceError> {
    let deadline = Instant::now() + LEASE_PATIENCE;
    let opened = engine.open_fetch((open.job, open.split), open.from, deadline).await;
    opened.ok_or_else(|| {
        ServiceError::new(
            ServiceErrorKind::NotFound,
            format!("this worker does not hold split {} of job {}", open.split.ordinal, open.job),
        )
    })
}

/// How waiting for more credit ends.
enum More {
    Came,
    /// The consumer asks for nothing further.
    Ended,
    /// It has gone, or says what makes no sense.
    Gone,
}

struct Fetch {
    engine: Arc<Engine>,
    open: FetchOpen,
    number: u64,
    /// Wakes it when there may be something for it.
    changed: Arc<Notify>,
    frames: mpsc::Sender<Result<Frame, ServiceError>>,
    /// Bytes that the consumer has room for.
    credit: u64,
    /// Its place among all fetches.
    _place: FetchPermit,
}

impl Fetch {
    async fn run(mut self, requests: BoxStream<'static, FetchRequest>, stop: CancellationToken) {
        // A consumer that has gone needs no answer.
        let _ = stop.run_until_cancelled(self.serve(requests)).await;
        self.engine.close_fetch(self.open.job, self.open.split, self.number);
    }

    /// Sends pieces until the split ends; `None` when the consumer has gone.
    async fn serve(&mut self, mut requests: BoxStream<'static, FetchRequest>) -> Option<()> {
        let mut from = self.open.from;
        let mut opened = false;
        // Whether more credit may come; without it the consumer still takes what it has credit for.
        let mut may_ask = true;
        let frames = self.frames.clone();
        let mut sign = tokio::time::interval(SIGN_OF_WORK);
        sign.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = 0;
        loop {
            let engine = Arc::clone(&self.engine);
            let change = Arc::clone(&self.changed);
            let changed = change.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.credit == 0 {
                self.needed_credit(&mut requests).await?;
                continue;
            }
            match engine.next_piece(self.open.job, self.open.split, self.number, from) {
                PieceLookup::Piece(job, piece) => {
                    if !std::mem::replace(&mut opened, true) {
                        self.send(Frame::Schema(Arc::clone(&job.output_arrow))).await?;
                    }
                    from = piece.header.to;
                    let bytes = piece.data.len() as u64;
                    self.send(Frame::Piece(piece.header.clone())).await?;
                    // The header tells the consumer how much credit the piece needs.
                    while self.credit < bytes {
                        self.needed_credit(&mut requests).await?;
                    }
                    self.credit -= bytes;
                    metrics::count_sent(piece.header.rows, bytes, piece.header.skipped.len());
                    let data = piece.data.clone();
                    drop(piece);
                    if !data.is_empty() {
                        self.send(Frame::Chunk { offset: 0, data }).await?;
                    }
                }
                PieceLookup::Failed(message) => return self.send(Frame::Failed(message)).await,
                PieceLookup::End(job) => {
                    if !opened {
                        self.send(Frame::Schema(Arc::clone(&job.output_arrow))).await?;
                    }
                    return self.send(Frame::End).await;
                }
                PieceLookup::Unknown => {
                    let gone =
                        format!("split {} of job {} was taken back", self.open.split.ordinal, self.open.job);
                    return self
                        .frames
                        .send(Err(ServiceError::new(ServiceErrorKind::NotFound, gone)))
                        .await
                        .ok();
                }
                PieceLookup::Wait => tokio::select! {
                    () = changed => {}
                    more = self.more_credit(&mut requests), if may_ask => match more {
                        More::Came => {}
                        More::Ended => may_ask = false,
                        More::Gone => return None,
                    },
                    () = frames.closed() => return None,
                    _ = sign.tick() => {
                        let steps = engine.steps(self.open.job, self.open.split);
                        if std::mem::replace(&mut seen, steps) != steps {
                            self.send(Frame::Working).await?;
                        }
                    }
                },
            }
        }
    }

    /// Waits for credit without which nothing can be sent; `None` where none comes any more.
    async fn needed_credit(&mut self, requests: &mut BoxStream<'static, FetchRequest>) -> Option<()> {
        matches!(self.more_credit(requests).await, More::Came).then_some(())
    }

    /// Waits for the consumer to ask for more.
    async fn more_credit(&mut self, requests: &mut BoxStream<'static, FetchRequest>) -> More {
        let request = tokio::select! {
            request = requests.next() => request,
            () = self.frames.closed() => return More::Gone,
        };
        match request {
            Some(FetchRequest::Credit { bytes }) => {
                self.credit = self.credit.saturating_add(bytes);
                More::Came
            }
            Some(FetchRequest::Open(_)) => More::Gone,
            None => More::Ended,
        }
    }

    async fn send(&self, frame: Frame) -> Option<()> {
        self.frames.send(Ok(frame)).await.ok()
    }
}
