//! The fetches of a feed by split, with a running total of the bytes that they may still receive.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// A split that is damaged this many times is damaged.
const DAMAGED_TRIES: u32 = 3;

/// The fetches of one split.
#[derive(Debug)]
pub(super) struct SplitFetch {
    pub(super) attempts: Vec<Attempt>,
    pub(super) buffered_bytes: u64,
    /// A row failed: one sentence.
    pub(super) failed: Option<String>,
    /// Workers at which it broke since one delivered.
    pub(super) avoid: BTreeSet<WorkerId>,
    pub(super) retry_at: Instant,
    pub(super) backoff: Duration,
    pub(super) not_here_since: Option<Instant>,
    pub(super) busy_since: Option<Instant>,
    damaged: u32,
    /// How often an attempt was given up because it was silent.
    pub(super) idle: u32,
}

impl SplitFetch {
    pub(super) fn new(now: Instant, backoff: Duration) -> Self {
        Self {
            attempts: Vec::new(),
            buffered_bytes: 0,
            failed: None,
            avoid: BTreeSet::new(),
            retry_at: now,
            backoff,
            not_here_since: None,
            busy_since: None,
            damaged: 0,
            idle: 0,
        }
    }

    /// Notes that a worker sent what cannot be read; whether that happened too often to try again.
    pub(super) fn is_damaged(&mut self, split: SplitRef, worker: WorkerId, message: &str) -> bool {
        self.damaged += 1;
        tracing::warn!(?split, %worker, message, "a fetch sent what cannot be read");
        self.damaged >= DAMAGED_TRIES
    }

    /// A piece has arrived: earlier failures do not count any more.
    pub(super) fn forget_failures(&mut self, backoff: Duration) {
        self.avoid.clear();
        self.backoff = backoff;
        self.not_here_since = None;
        self.busy_since = None;
        self.damaged = 0;
    }

    fn outstanding(&self) -> u64 {
        self.attempts.iter().map(Attempt::outstanding).sum()
    }
}

/// One fetch.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) worker: WorkerId,
    pub(super) credit: watch::Sender<u64>,
    /// Bytes of credit given in all.
    pub(super) granted: u64,
    /// Bytes received in all.
    pub(super) received: u64,
    /// Bytes missing of the piece that has begun.
    pub(super) piece_left: u64,
    /// Size of the largest piece so far.
    pub(super) largest: u64,
    pub(super) delivered: bool,
    /// When it last sent something, or could send again.
    pub(super) heard_at: Instant,
    /// When it last sent something of a piece, or could again.
    pub(super) moved_at: Instant,
    pub(super) task: Option<AbortOnDropHandle<()>>,
}

impl Attempt {
    pub(super) fn new(id: u64, worker: WorkerId, credit: watch::Sender<u64>, now: Instant) -> Self {
        let granted = *credit.borrow();
        Self {
            id,
            worker,
            credit,
            granted,
            received: 0,
            piece_left: 0,
            largest: 0,
            delivered: false,
            heard_at: now,
            moved_at: now,
            task: None,
        }
    }

    /// Bytes that may come.
    pub(super) fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.received)
    }

    /// Bytes of the piece that has begun for which there is no credit.
    pub(super) fn lacking(&self) -> u64 {
        self.piece_left.saturating_sub(self.outstanding())
    }

    /// Whether the worker has credit for what comes next.
    pub(super) fn can_send(&self) -> bool {
        let next = if self.piece_left > 0 { self.piece_left } else { self.largest };
        self.outstanding() >= next.max(1)
    }
}

/// Fetches by split. An entry changes only through the methods here, which keep the total true.
#[derive(Debug, Default)]
pub(super) struct FetchTable {
    splits: BTreeMap<SplitRef, SplitFetch>,
    outstanding: u64,
}

impl FetchTable {
    pub(super) fn get(&self, split: SplitRef) -> Option<&SplitFetch> {
        self.splits.get(&split)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SplitRef, &SplitFetch)> {
        self.splits.iter().map(|(split, fetch)| (*split, fetch))
    }

    /// Bytes that may still come over all fetches.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Changes the entry of a split, if there is one.
    pub(super) fn update<R>(
        &mut self,
        split: SplitRef,
        change: impl FnOnce(&mut SplitFetch) -> R,
    ) -> Option<R> {
        let fetch = self.splits.get_mut(&split)?;
        let before = fetch.outstanding();
        let result = change(fetch);
        self.outstanding = self.outstanding - before + fetch.outstanding();
        Some(result)
    }

    /// Changes an attempt, if it is present.
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

    /// Adds an attempt; `new` makes the entry of a split that has none.
    pub(super) fn begin(&mut self, split: SplitRef, attempt: Attempt, new: impl FnOnce() -> SplitFetch) {
        self.outstanding += attempt.outstanding();
        self.splits.entry(split).or_insert_with(new).attempts.push(attempt);
    }

    pub(super) fn remove(&mut self, split: SplitRef) -> Option<SplitFetch> {
        let fetch = self.splits.remove(&split)?;
        self.outstanding -= fetch.outstanding();
        Some(fetch)
    }

    pub(super) fn clear(&mut self) {
        self.splits.clear();
        self.outstanding = 0;
    }

    /// Ends all attempts; the entries stay.
    pub(super) fn end_attempts(&mut self) {
        self.splits.values_mut().for_each(|fetch| fetch.attempts.clear());
        self.outstanding = 0;
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(SplitRef) -> bool) {
        self.splits.retain(|split, _| keep(*split));
        self.outstanding = self.splits.values().map(SplitFetch::outstanding).sum();
    }
}
