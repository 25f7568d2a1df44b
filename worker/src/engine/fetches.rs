//! Fetches of splits: a consumer's call receives finished pieces, and waits for those that are not finished.

use std::sync::Arc;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio::sync::Notify;

use super::Engine;
use super::job::JobContext;
use super::piece::FinishedPiece;

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

/// A registered fetch.
pub(crate) struct OpenFetch {
    pub(crate) number: u64,
    /// Notifies the fetch when the split has changed.
    pub(crate) changed: Arc<Notify>,
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
        loop {
            let arrival = match self.try_open_fetch(job, split, from) {
                Ok(fetch) => return Some(fetch),
                Err(arrival) => arrival,
            };
            let arrived = arrival.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let has_arrived = self.lock().leases.contains(job, split);
            if !has_arrived && tokio::time::timeout_at(deadline.into(), arrived).await.is_err() {
                let mut state = self.lock();
                // The map has one reference and this fetch has the other.
                if state.arrivals.get(&(job, split)).is_some_and(|arrival| Arc::strong_count(arrival) == 2) {
                    state.arrivals.remove(&(job, split));
                }
                return None;
            }
        }
    }

    fn try_open_fetch(
        self: &Arc<Self>,
        job: JobId,
        split: SplitRef,
        from: u32,
    ) -> Result<OpenFetch, Arc<Notify>> {
        let mut state = self.lock();
        state.next_fetch += 1;
        let number = state.next_fetch;
        let opened = state.leases.update(job, split, |lease| {
            lease.open_fetch(number, from);
            Arc::clone(&lease.changed)
        });
        let Some(changed) = opened else {
            return Err(Arc::clone(state.arrivals.entry((job, split)).or_default()));
        };
        self.pump_locked(state);
        Ok(OpenFetch { number, changed })
    }

    /// Looks up the piece at offset `from` for fetch `number`. A piece is handed out once.
    pub(crate) fn next_piece(
        self: &Arc<Self>,
        job: JobId,
        split: SplitRef,
        number: u64,
        from: u32,
    ) -> PieceLookup {
        let mut state = self.lock();
        let Some(context) = state.jobs.get(&job).cloned() else {
            return match state.leases.get(job, split) {
                Some(lease) => lease.failure(from).map_or(PieceLookup::Wait, PieceLookup::Failed),
                None => PieceLookup::Unknown,
            };
        };
        let Some(lease) = state.leases.get(job, split).filter(|lease| lease.fetch == Some(number)) else {
            return PieceLookup::Unknown;
        };
        if from >= context.layout().split_len(split) {
            return PieceLookup::End(context);
        }
        let (failure, was_waiting) = (lease.failure(from), lease.is_awaited());
        let taken = state.leases.update(job, split, |lease| lease.take_piece(from)).flatten();
        if let Some(piece) = taken {
            // The stream holds fewer bytes now, so a group that did not fit may start.
            if state.is_blocked {
                self.pump_locked(state);
            }
            return PieceLookup::Piece(context, piece);
        }
        if let Some(message) = failure {
            return PieceLookup::Failed(message);
        }
        state.leases.update(job, split, |lease| lease.wait_for(from));
        if state.is_blocked && !was_waiting {
            self.pump_locked(state);
        }
        PieceLookup::Wait
    }

    /// The progress of a split and of the earlier splits of its stream. It increases while these are being computed.
    pub(crate) fn progress(&self, job: JobId, split: SplitRef) -> u64 {
        self.lock().leases.job(job).map_or(0, |leases| leases.progress(split))
    }

    /// Ends a fetch whose consumer has disconnected or has received all rows.
    pub(crate) fn close_fetch(&self, job: JobId, split: SplitRef, number: u64) {
        self.lock().leases.update(job, split, |lease| lease.close_fetch(number));
    }
}
