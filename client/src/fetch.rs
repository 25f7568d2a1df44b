//! Runs one fetch: opens it on a worker, sends credit, and passes the received frames to the consumer's state.

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
use crate::feature_cache::FeatureCache;
use crate::pieces::{FrameEvent, PieceReader};
use crate::receive_pool::ReceivePool;
use crate::shared_state::SharedState;
use crate::state::{FetchCommand, FetchOutcome};
use crate::workers::WorkerDirectory;

/// The context that all fetches of a consumer share.
#[derive(Clone)]
pub(crate) struct FetchContext {
    pub(crate) job: JobId,
    pub(crate) workers: Arc<dyn WorkerDirectory>,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) pool: Arc<ReceivePool>,
    /// The cache of rows of features, if the settings have one.
    pub(crate) cache: Option<Arc<FeatureCache>>,
}

/// Runs one fetch to its end and records the outcome. The state aborts the task if another fetch of the split delivers first or
/// the consumer ends.
pub(crate) async fn run(command: FetchCommand, context: FetchContext) {
    let (split, attempt) = (command.split, command.attempt);
    let outcome = fetch(command, &context).await;
    context.shared.lock().on_outcome(split, attempt, outcome, Instant::now());
    context.shared.notify_all();
}

async fn fetch(command: FetchCommand, context: &FetchContext) -> FetchOutcome {
    let FetchCommand { split, attempt, from, address, credit_bytes, credit, ticket } = command;
    let worker: Arc<dyn WorkerService> = match context.workers.worker(&address) {
        Ok(worker) => worker,
        Err(error) => return FetchOutcome::Rejected(error.message),
    };
    let cached = context.cache.as_ref().and_then(|cache| cache.loaded());
    let cached_features = cached.as_ref().map(|cached| cached.features.clone()).unwrap_or_default();
    let cache_ticket = ticket.clone();
    let open =
        FetchOpen { job: context.job, split, start_offset: from, credit_bytes, ticket, cached_features };
    let mut frames = match worker.fetch(request_stream(open, credit)).await {
        Ok(frames) => frames,
        Err(error) => return outcome_of_error(error),
    };
    let network_bytes = |bytes| if worker.is_remote() { bytes } else { 0 };
    let mut reader = PieceReader::new(Arc::clone(&context.pool), cached);
    while let Some(frame) = frames.next().await {
        let event = match frame.map(|frame| reader.read(frame)) {
            Ok(Ok(event)) => event,
            Ok(Err(message)) => return FetchOutcome::Invalid(message),
            Err(error) => return outcome_of_error(error),
        };
        let now = Instant::now();
        match event {
            FrameEvent::None => {}
            FrameEvent::Working => context.shared.lock().on_working(split, attempt, now),
            FrameEvent::PieceOpened(bytes) => {
                context.shared.lock().on_piece_opened(split, attempt, bytes, now);
            }
            FrameEvent::Bytes(bytes) => {
                let mut state = context.shared.lock();
                state.on_bytes(split, attempt, bytes, now);
                state.count_network_bytes(network_bytes(bytes));
            }
            FrameEvent::Piece { bytes, piece } => {
                if let Some(cache) = context.cache.as_ref().filter(|_| piece.payload.is_indivisible) {
                    cache.start_loading(&worker, &cache_ticket);
                }
                let omitted_bytes = piece.payload.omitted_bytes;
                let mut state = context.shared.lock();
                state.on_bytes(split, attempt, bytes, now);
                state.count_network_bytes(network_bytes(bytes.saturating_sub(omitted_bytes)));
                state.on_piece(split, attempt, piece, now);
                drop(state);
                context.shared.notify_all();
            }
            FrameEvent::RowFailed(message) => return FetchOutcome::RowFailed(message),
            FrameEvent::End => return FetchOutcome::Complete,
        }
    }
    FetchOutcome::Disconnected("the stream ended before the end of the split".to_owned())
}

/// Creates the request stream of a fetch: the open request, then the credit that the state grants.
pub(crate) fn request_stream(
    open: FetchOpen,
    credit: watch::Receiver<u64>,
) -> BoxStream<'static, FetchRequest> {
    let first_credit = open.credit_bytes;
    let grants = stream::unfold((credit, first_credit), |(mut credit, sent)| async move {
        credit.changed().await.ok()?;
        let granted = *credit.borrow_and_update();
        Some((FetchRequest::Credit { bytes: granted - sent }, (credit, granted)))
    });
    stream::iter([FetchRequest::Open(open)]).chain(grants).boxed()
}

fn outcome_of_error(error: ServiceError) -> FetchOutcome {
    if error.is_version_mismatch {
        return FetchOutcome::VersionMismatch(error.message);
    }
    match error.kind {
        ServiceErrorKind::NotFound => FetchOutcome::NotFound,
        ServiceErrorKind::Invalid => FetchOutcome::Rejected(error.message),
        // The next plan may contain a valid ticket.
        ServiceErrorKind::Denied | ServiceErrorKind::Superseded | ServiceErrorKind::Unavailable => {
            FetchOutcome::Disconnected(error.message)
        }
        ServiceErrorKind::Busy => FetchOutcome::Busy(busy::retry_delay(&error), error.message),
    }
}
