//! Serves rows of features to other workers that compute the same job.
//!
//! A request is stateless. The ticket of the request proves that the caller computes the job, and a job can only request features of
//! its own batches. Therefore no tenant receives rows of a feature that its jobs may not read. The memory of all responses is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::JobId;
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::GatherRequest;

use crate::engine::{Engine, GatherableFeature, MemoryBudget, MemoryReservation};
use crate::metrics;
use crate::tickets::Tickets;

/// Pause before a worker retries a rejected request. It is short, because responses are sent within milliseconds.
const RETRY_MS: u64 = 20;
/// A response counts at least this many bytes, which also bounds the number of small responses.
const MIN_CHARGED_BYTES: u64 = 16 << 10;

/// The features of the jobs of a worker.
pub(crate) trait GatherSource: Send + Sync {
    /// Returns the feature with this content hash. Returns `None` if the worker has not loaded the job, or its batches do not contain
    /// the feature.
    fn feature(&self, job: JobId, content: GraphHash) -> Option<Arc<dyn GatherableFeature>>;
}

impl GatherSource for Engine {
    fn feature(&self, job: JobId, content: GraphHash) -> Option<Arc<dyn GatherableFeature>> {
        self.gatherable_feature(job, content)
    }
}

/// Serves rows of features.
pub(crate) struct GatherServer {
    source: Arc<dyn GatherSource>,
    tickets: Arc<Tickets>,
    budget: Arc<MemoryBudget>,
    /// Bytes of all responses that are not sent yet.
    unsent_bytes: Arc<AtomicU64>,
}

/// The rows of a response. Their memory is released when they are sent.
struct GatheredRows {
    rows: Vec<u8>,
    _permit: GatherPermit,
}

impl AsRef<[u8]> for GatheredRows {
    fn as_ref(&self) -> &[u8] {
        &self.rows
    }
}

/// The memory of one response.
struct GatherPermit {
    bytes: u64,
    unsent_bytes: Arc<AtomicU64>,
    _reservation: MemoryReservation,
}

impl Drop for GatherPermit {
    fn drop(&mut self) {
        self.unsent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl GatherServer {
    pub(crate) fn new(
        source: Arc<dyn GatherSource>,
        tickets: Arc<Tickets>,
        budget: Arc<MemoryBudget>,
    ) -> Self {
        Self { source, tickets, budget, unsent_bytes: Arc::default() }
    }

    /// Returns the rows of a request.
    ///
    /// # Errors
    /// Returns an error if the ticket is invalid, the request exceeds a limit, or the worker does not hold the rows.
    pub(crate) async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        self.tickets.check_gather(&request)?;
        request.check_size()?;
        let GatherRequest { job, feature: content, row_bytes, .. } = request;
        let Some(feature) = self.source.feature(job, content) else {
            let message = format!("this worker holds no rows of the feature {content} for job {job}");
            return Err(ServiceError::new(ServiceErrorKind::NotFound, message));
        };
        if feature.row_bytes() != row_bytes {
            let message = format!(
                "a row of the feature {content} has {} bytes, but the request expects {row_bytes} bytes",
                feature.row_bytes()
            );
            return Err(ServiceError::new(ServiceErrorKind::Invalid, message));
        }
        let permit = self.reserve(request.response_bytes())?;
        let rows = feature.held_rows(request.rows).await?;
        metrics::count_gather_sent(rows.len() as u64);
        Ok(Bytes::from_owner(GatheredRows { rows, _permit: permit }))
    }

    /// Reserves the memory of a response.
    fn reserve(&self, bytes: u64) -> Result<GatherPermit, ServiceError> {
        let limit = self.budget.limits().gathered_bytes();
        let charged = bytes.max(MIN_CHARGED_BYTES);
        if charged > limit {
            let message = format!(
                "the requested rows need {charged} bytes, but this worker sends at most {limit} bytes of rows at a time; request fewer \
                 rows, or raise the workers' --memory"
            );
            return Err(ServiceError::new(ServiceErrorKind::Invalid, message));
        }
        let add = |used: u64| used.checked_add(charged).filter(|sum| *sum <= limit);
        if self.unsent_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            let message =
                format!("this worker already sends {limit} bytes of rows to other workers; retry later");
            return Err(ServiceError::busy(message, RETRY_MS));
        }
        let reservation = self.budget.reserve(MemoryAccount::Batches, charged);
        Ok(GatherPermit {
            bytes: charged,
            unsent_bytes: Arc::clone(&self.unsent_bytes),
            _reservation: reservation,
        })
    }
}

#[cfg(test)]
mod tests;
