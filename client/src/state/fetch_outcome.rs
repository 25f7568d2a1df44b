//! The outcomes of a fetch, and the resulting decisions for its split.

use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use tokio::time::{Duration, Instant};

use super::fetch_table::SplitFetch;
use crate::error::ClientError;

/// Minimum delay before a retry if the worker has not received its lease yet.
const NOT_FOUND_BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Maximum delay before a retry if the worker has not received its lease yet.
const NOT_FOUND_BACKOFF_MAX: Duration = Duration::from_millis(200);
/// Number of attempts with invalid frames after which the consumer fails.
const MAX_INVALID_ATTEMPTS: u32 = 3;

/// The outcome of a fetch.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// The split is complete.
    Complete,
    /// A row failed, with the error message.
    RowFailed(String),
    /// The worker has no lease for the split, or has not received it yet.
    NotFound,
    /// The worker has reached its fetch limit. Contains the delay before a retry, and the worker's message.
    Busy(Duration, String),
    /// The connection failed. Contains the reason.
    Disconnected(String),
    /// The worker has another protocol version. Contains the worker's message.
    VersionMismatch(String),
    /// The worker sent invalid frames. Contains the reason.
    Invalid(String),
    /// The worker rejected the request permanently. Contains the worker's message.
    Rejected(String),
}

/// The decision after a fetch has ended.
pub(super) enum FetchDecision {
    /// Do nothing.
    Ignore,
    /// Fail the consumer.
    Fail(ClientError),
    /// Fetch again at this time.
    Retry(Instant),
    /// Report the worker as unreachable, and fetch again at this time.
    ReportAndRetry(Instant),
}

impl SplitFetch {
    /// Records the outcome of a fetch from `worker`. `idle_limit` bounds retries at a worker that is busy or lacks the split.
    pub(super) fn on_outcome(
        &mut self,
        split: SplitRef,
        worker: WorkerId,
        outcome: FetchOutcome,
        idle_limit: Duration,
        now: Instant,
    ) -> FetchDecision {
        match outcome {
            FetchOutcome::RowFailed(message) => {
                self.row_error = Some(message);
                return FetchDecision::Ignore;
            }
            FetchOutcome::Rejected(message) => return FetchDecision::Fail(ClientError::Refused(message)),
            FetchOutcome::NotFound => {
                // Prefer another worker for the next attempt.
                self.failed_workers.insert(worker);
                let waited = now - *self.not_found_since.get_or_insert(now);
                if waited < idle_limit {
                    return self
                        .schedule_retry(now + waited.clamp(NOT_FOUND_BACKOFF_MIN, NOT_FOUND_BACKOFF_MAX));
                }
                self.not_found_since = None;
            }
            FetchOutcome::Busy(pause, message) => {
                // Do not report a busy worker as unreachable, because another worker would compute the split again.
                let since = *self.busy_since.get_or_insert(now);
                if now - since < idle_limit {
                    return self.schedule_retry(now + pause);
                }
                self.busy_since = None;
                tracing::info!(?split, %worker, message, "the worker rejected a fetch because it is busy");
            }
            FetchOutcome::Invalid(message) => {
                if let Some(error) = self.on_invalid(split, worker, message) {
                    return FetchDecision::Fail(error);
                }
            }
            FetchOutcome::Complete => {
                let message = "the stream ended before the last row of the split".to_owned();
                if let Some(error) = self.on_invalid(split, worker, message) {
                    return FetchDecision::Fail(error);
                }
            }
            FetchOutcome::Disconnected(message) | FetchOutcome::VersionMismatch(message) => {
                tracing::info!(?split, %worker, message, "a fetch was interrupted");
            }
        }
        self.failed_workers.insert(worker);
        self.retry_at = now + self.backoff.next_pause();
        FetchDecision::ReportAndRetry(self.retry_at)
    }

    fn schedule_retry(&mut self, time: Instant) -> FetchDecision {
        self.retry_at = time;
        FetchDecision::Retry(time)
    }

    /// Counts an attempt with invalid frames. Returns an error after [`MAX_INVALID_ATTEMPTS`].
    fn on_invalid(&mut self, split: SplitRef, worker: WorkerId, message: String) -> Option<ClientError> {
        self.invalid_attempts += 1;
        tracing::warn!(?split, %worker, message, "the worker sent invalid frames");
        let split = format!("{} of epoch {}, stream {}", split.ordinal, split.epoch, split.stream);
        let is_fatal = self.invalid_attempts >= MAX_INVALID_ATTEMPTS;
        is_fatal.then_some(ClientError::Damaged { split, message })
    }
}
