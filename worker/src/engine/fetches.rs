//! Fetches of splits: a consumer's call receives finished pieces, and waits for those that are not finished.

use std::sync::Arc;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio::sync::{Notify, oneshot};

use super::Engine;
use super::events::{EngineEvent, FetchRequest};
use super::job::JobContext;
use super::piece::FinishedPiece;
use super::split::SharedSplit;

/// The result of a look-up of the next piece.
pub(crate) enum PieceLookup {
    /// The piece that contains the wanted row, and its job.
    Piece(Arc<JobContext>, Arc<FinishedPiece>),
    /// The row failed, so the split ends before it: one sentence.
    Failed(String),
    /// Everything has been fetched.
    End(Arc<JobContext>),
    /// The piece is not finished: wait for a change.
    Wait,
    /// This worker does not have a lease of the split, or a newer fetch has replaced this one.
    Unknown,
}

/// An open fetch. Dropping it closes the fetch.
pub(crate) struct OpenFetch {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    pub(super) number: u64,
    /// Notifies the fetch when the split has changed.
    pub(crate) changed: Arc<Notify>,
    pub(super) shared: Arc<SharedSplit>,
}

impl Drop for OpenFetch {
    fn drop(&mut self) {
        self.shared.lock().close_fetch(self.number);
    }
}

impl Engine {
    /// Registers a fetch of a split from offset `from`; an earlier fetch of the same split ends. Waits for the lease until the
    /// deadline; `None` if the lease has not arrived by then.
    pub(crate) async fn open_fetch(
        self: &Arc<Self>,
        (job, split): (JobId, SplitRef),
        from: u32,
        deadline: Instant,
    ) -> Option<OpenFetch> {
        let (reply, opened) = oneshot::channel();
        self.post(EngineEvent::FetchRequested(FetchRequest { job, split, from, reply }));
        tokio::time::timeout_at(deadline.into(), opened).await.ok()?.ok()
    }

    /// Looks up the piece of a fetch at offset `from`. A piece is handed out once.
    pub(crate) fn next_piece(self: &Arc<Self>, fetch: &OpenFetch, from: u32) -> PieceLookup {
        let (lookup, has_changed) = fetch.shared.lock().next_piece(fetch.number, fetch.split, from);
        // The stream may hold fewer bytes now, or its consumer may wait: a group that did not fit may start.
        if has_changed {
            self.post(EngineEvent::SplitChanged(fetch.job, fetch.split));
        }
        lookup
    }

    /// The progress of a split and of the earlier splits of its stream. It increases while these are being computed.
    pub(crate) fn progress(&self, fetch: &OpenFetch) -> u64 {
        self.lock().leases.job(fetch.job).map_or(0, |leases| leases.progress(fetch.split))
    }

    /// Ends a fetch whose consumer has disconnected or has received all rows.
    pub(crate) fn close_fetch(self: &Arc<Self>, fetch: OpenFetch) {
        let (job, split) = (fetch.job, fetch.split);
        drop(fetch);
        self.post(EngineEvent::SplitChanged(job, split));
    }
}
