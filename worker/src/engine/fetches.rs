//! Fetches: a consumer fetches a split, receives its finished pieces, and waits for the pieces that are not finished.

use std::sync::Arc;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio::sync::oneshot;

use super::Engine;
use super::events::EngineEvent;
use super::piece::PieceLookup;
use super::split::OpenFetch;
use super::state::PendingFetch;

impl Engine {
    /// Opens a fetch of a split from offset `from`, and closes any earlier fetch of the split. Waits for the lease
    /// until the deadline. Returns `None` if the lease has not arrived by then.
    pub(crate) async fn open_fetch(
        self: &Arc<Self>,
        (job, split): (JobId, SplitRef),
        from: u32,
        deadline: Instant,
    ) -> Option<OpenFetch> {
        let (reply, opened) = oneshot::channel();
        self.post(EngineEvent::FetchRequested(PendingFetch { job, split, from, reply }));
        tokio::time::timeout_at(deadline.into(), opened).await.ok()?.ok()
    }

    /// Looks up the piece of a fetch at offset `from`. Each piece is returned only once.
    pub(crate) fn next_piece(self: &Arc<Self>, fetch: &OpenFetch, from: u32) -> PieceLookup {
        let (lookup, has_changed) = fetch.shared.lock().next_piece(fetch.number, fetch.split, from);
        // The stream may hold fewer bytes now, or its consumer may be waiting, so a group that did not fit before may
        // start.
        if has_changed {
            self.post(EngineEvent::SplitChanged(fetch.job, fetch.split));
        }
        lookup
    }

    /// The progress of a split and of the earlier splits of its stream. The value increases while these splits are
    /// being computed.
    pub(crate) fn progress(&self, fetch: &OpenFetch) -> u64 {
        self.lock().leases.job(fetch.job).map_or(0, |leases| leases.progress(fetch.split))
    }

    /// Closes a fetch whose consumer has disconnected or has received all rows.
    pub(crate) fn close_fetch(self: &Arc<Self>, fetch: OpenFetch) {
        let (job, split) = (fetch.job, fetch.split);
        drop(fetch);
        self.post(EngineEvent::SplitChanged(job, split));
    }
}
