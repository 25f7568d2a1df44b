//! The fetches of a consumer by split, and the total number of bytes that they may still receive.

use std::collections::{BTreeMap, BTreeSet};

use feedline_common::backoff::Backoff;
use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Pauses between fetches of a split after a fetch has failed.
const FETCH_BACKOFF: Backoff = Backoff::from_millis(50, 1_000);

/// The fetches of one split.
#[derive(Debug)]
pub(super) struct SplitFetch {
    pub(super) attempts: Vec<Attempt>,
    pub(super) buffered_bytes: u64,
    /// The error message of a failed row.
    pub(super) row_error: Option<String>,
    /// Workers whose attempts have failed since the last piece arrived.
    pub(super) failed_workers: BTreeSet<WorkerId>,
    pub(super) retry_at: Instant,
    pub(super) backoff: Backoff,
    pub(super) not_found_since: Option<Instant>,
    pub(super) busy_since: Option<Instant>,
    /// Number of attempts with invalid frames since the last piece arrived.
    pub(super) invalid_attempts: u32,
    /// Number of attempts that were aborted because the worker sent no frames.
    pub(super) idle_attempts: u32,
}

impl SplitFetch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            attempts: Vec::new(),
            buffered_bytes: 0,
            row_error: None,
            failed_workers: BTreeSet::new(),
            retry_at: now,
            backoff: FETCH_BACKOFF,
            not_found_since: None,
            busy_since: None,
            invalid_attempts: 0,
            idle_attempts: 0,
        }
    }

    /// Resets the failure counters, because a piece has arrived.
    pub(super) fn reset_failures(&mut self) {
        self.failed_workers.clear();
        self.backoff.reset();
        self.not_found_since = None;
        self.busy_since = None;
        self.invalid_attempts = 0;
    }

    /// Records that an attempt has delivered a piece, and aborts the other attempts. Returns `false` if the attempt has ended.
    pub(super) fn select_attempt(&mut self, attempt: u64, now: Instant) -> bool {
        if self.attempts.iter().all(|present| present.id != attempt) {
            return false;
        }
        self.attempts.retain(|present| present.id == attempt);
        for selected in &mut self.attempts {
            selected.has_delivered = true;
            selected.on_progress(now);
        }
        self.reset_failures();
        true
    }

    fn outstanding_bytes(&self) -> u64 {
        self.attempts.iter().map(Attempt::outstanding_bytes).sum()
    }
}

/// One fetch.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) worker: WorkerId,
    pub(super) credit: watch::Sender<u64>,
    /// Total number of granted bytes.
    pub(super) granted_bytes: u64,
    /// Total number of received bytes.
    pub(super) received_bytes: u64,
    /// Number of missing bytes of the piece that is being received.
    pub(super) missing_piece_bytes: u64,
    /// Size of the largest piece so far.
    pub(super) largest_piece: u64,
    pub(super) has_delivered: bool,
    /// Time of the last frame, or of a later grant after which the worker could send again.
    pub(super) last_frame_at: Instant,
    /// Time of the last frame of a piece, or of a later grant after which the worker could send again.
    pub(super) last_progress_at: Instant,
    pub(super) task: Option<AbortOnDropHandle<()>>,
}

impl Attempt {
    pub(super) fn new(id: u64, worker: WorkerId, credit: watch::Sender<u64>, now: Instant) -> Self {
        let granted_bytes = *credit.borrow();
        Self {
            id,
            worker,
            credit,
            granted_bytes,
            received_bytes: 0,
            missing_piece_bytes: 0,
            largest_piece: 0,
            has_delivered: false,
            last_frame_at: now,
            last_progress_at: now,
            task: None,
        }
    }

    pub(super) fn on_progress(&mut self, now: Instant) {
        (self.last_frame_at, self.last_progress_at) = (now, now);
    }

    /// Number of granted bytes that have not arrived.
    pub(super) fn outstanding_bytes(&self) -> u64 {
        self.granted_bytes.saturating_sub(self.received_bytes)
    }

    /// Number of bytes of the current piece that the worker has no credit for.
    pub(super) fn missing_credit(&self) -> u64 {
        self.missing_piece_bytes.saturating_sub(self.outstanding_bytes())
    }

    /// Whether the worker has credit for the next piece.
    pub(super) fn can_send(&self) -> bool {
        let next = if self.missing_piece_bytes > 0 { self.missing_piece_bytes } else { self.largest_piece };
        self.outstanding_bytes() >= next.max(1)
    }
}

/// The fetches by split. All changes of an entry use the methods of this type, which update the total.
#[derive(Debug, Default)]
pub(super) struct FetchTable {
    splits: BTreeMap<SplitRef, SplitFetch>,
    outstanding_bytes: u64,
}

impl FetchTable {
    pub(super) fn get(&self, split: SplitRef) -> Option<&SplitFetch> {
        self.splits.get(&split)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SplitRef, &SplitFetch)> {
        self.splits.iter().map(|(split, fetch)| (*split, fetch))
    }

    /// Number of granted bytes that have not arrived, over all fetches.
    pub(super) fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes
    }

    /// Changes the entry of a split, if it exists.
    pub(super) fn update<R>(
        &mut self,
        split: SplitRef,
        change: impl FnOnce(&mut SplitFetch) -> R,
    ) -> Option<R> {
        let fetch = self.splits.get_mut(&split)?;
        let before = fetch.outstanding_bytes();
        let result = change(fetch);
        self.outstanding_bytes = self.outstanding_bytes - before + fetch.outstanding_bytes();
        Some(result)
    }

    /// Changes an attempt, if it exists.
    pub(super) fn update_attempt<R>(
        &mut self,
        split: SplitRef,
        attempt: u64,
        change: impl FnOnce(&mut Attempt) -> R,
    ) -> Option<R> {
        self.update(split, |fetch| {
            fetch.attempts.iter_mut().find(|present| present.id == attempt).map(change)
        })?
    }

    /// Adds an attempt. Creates the entry of the split with `new` if the split has no entry.
    pub(super) fn add_attempt(
        &mut self,
        split: SplitRef,
        attempt: Attempt,
        new: impl FnOnce() -> SplitFetch,
    ) {
        self.outstanding_bytes += attempt.outstanding_bytes();
        self.splits.entry(split).or_insert_with(new).attempts.push(attempt);
    }

    /// Removes and returns an attempt, if it exists.
    pub(super) fn remove_attempt(&mut self, split: SplitRef, attempt: u64) -> Option<Attempt> {
        self.update(split, |fetch| {
            let index = fetch.attempts.iter().position(|present| present.id == attempt)?;
            Some(fetch.attempts.swap_remove(index))
        })?
    }

    pub(super) fn remove(&mut self, split: SplitRef) -> Option<SplitFetch> {
        let fetch = self.splits.remove(&split)?;
        self.outstanding_bytes -= fetch.outstanding_bytes();
        Some(fetch)
    }

    pub(super) fn clear(&mut self) {
        self.splits.clear();
        self.outstanding_bytes = 0;
    }

    /// Aborts all attempts and keeps the entries.
    pub(super) fn abort_all(&mut self) {
        self.splits.values_mut().for_each(|fetch| fetch.attempts.clear());
        self.outstanding_bytes = 0;
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(SplitRef) -> bool) {
        self.splits.retain(|split, _| keep(*split));
        self.outstanding_bytes = self.splits.values().map(SplitFetch::outstanding_bytes).sum();
    }
}
