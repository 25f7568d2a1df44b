//! One fetch: opens it at a worker, passes credit on, and gives what comes to the feed.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::WorkerService;
use feedline_proto::services::{FetchOpen, FetchRequest};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::busy;
use crate::feed::{FetchOrder, FetchOutcome};
use crate::pieces::{FrameEvent, PieceReader};
use crate::receive_pool::ReceivePool;
use crate::session::SharedFeed;
use crate::workers::WorkerDirectory;

/// What all fetches of a consumer share.
#[derive(Clone)]
pub(crate) struct FetchContext {
    pub(crate) job: JobId,
    pub(crate) workers: Arc<dyn WorkerDirectory>,
    pub(crate) shared: Arc<SharedFeed>,
    pub(crate) pool: Arc<ReceivePool>,
}

/// Runs one fetch to its end and tells the feed. Ends early when it is aborted: another fetch won, or the consumer
/// is gone.
pub(crate) async fn run(order: FetchOrder, context: FetchContext) {
    let (split, attempt) = (order.split, order.attempt);
    let outcome = fetch(order, &context).await;
    context.shared.feed().on_outcome(split, attempt, outcome, Instant::now());
    context.shared.wake_both();
}

async fn fetch(order: FetchOrder, context: &FetchContext) -> FetchOutcome {
    let FetchOrder { split, attempt, from, address, credit_bytes, credit, ticket } = order;
    let worker: Arc<dyn WorkerService> = match context.workers.worker(&address) {
        Ok(worker) => worker,
        Err(refusal) => return FetchOutcome::Refused(refusal.message),
    };
    let open = FetchOpen { job: context.job, split, from, credit_bytes, ticket };
    let asked = Instant::now();
    let mut frames = match worker.fetch(requests(open, credit)).await {
        Ok(frames) => frames,
        Err(refusal) => return refused(refusal, asked),
    };
    let is_remote = worker.is_remote();
    let mut reader = PieceReader::new(Arc::clone(&context.pool));
    while let Some(frame) = frames.next().await {
        let read = match frame.map(|frame| reader.take(frame)) {
            Ok(Ok(read)) => read,
            Ok(Err(message)) => return FetchOutcome::Damaged(message),
            Err(refusal) => return refused(refusal, asked),
        };
        let now = Instant::now();
        match read {
            FrameEvent::Nothing => {}
            FrameEvent::Working => context.shared.feed().on_working(split, attempt, now),
            FrameEvent::Opened(bytes) => context.shared.feed().on_piece_opened(split, attempt, bytes, now),
            FrameEvent::Bytes(bytes) => {
                let mut feed = context.shared.feed();
                feed.on_bytes(split, attempt, bytes, now);
                feed.count_network_bytes(if is_remote { bytes } else { 0 });
            }
            FrameEvent::Piece { bytes, piece } => {
                let mut feed = context.shared.feed();
                feed.on_bytes(split, attempt, bytes, now);
                feed.count_network_bytes(if is_remote { bytes } else { 0 });
                feed.on_piece(split, attempt, piece, now);
                drop(feed);
                context.shared.wake_both();
            }
            FrameEvent::Failed(message) => return FetchOutcome::Failed(message),
            FrameEvent::End => return FetchOutcome::End,
        }
    }
    FetchOutcome::Broken("the stream ended before the split".to_owned())
}

/// The requests of a fetch: its opening, then whatever credit is given.
pub(crate) fn requests(open: FetchOpen, credit: watch::Receiver<u64>) -> BoxStream<'static, FetchRequest> {
    let given = open.credit_bytes;
    let grants = stream::unfold((credit, given), |(mut credit, given)| async move {
        credit.changed().await.ok()?;
        let total = *credit.borrow_and_update();
        Some((FetchRequest::Credit { bytes: total - given }, (credit, total)))
    });
    stream::iter([FetchRequest::Open(open)]).chain(grants).boxed()
}

fn refused(refusal: ServiceError, asked: Instant) -> FetchOutcome {
    match refusal.kind {
        ServiceErrorKind::NotFound => FetchOutcome::NotHere,
        ServiceErrorKind::Invalid => FetchOutcome::Refused(refusal.message),
        // The next plan brings another ticket.
        ServiceErrorKind::Denied | ServiceErrorKind::Superseded | ServiceErrorKind::Unavailable => {
            FetchOutcome::Broken(refusal.message)
        }
        ServiceErrorKind::Busy => {
            FetchOutcome::Busy(busy::pause(&refusal, busy::draw(asked)), refusal.message)
        }
    }
}
