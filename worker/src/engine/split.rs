//! One leased split: which of its groups run, which pieces are finished, who fetches them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::group::{FinishedPiece, SplitProgress};
use super::pool::Priority;

/// A group on its way.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// As admission counted them.
    bytes: u64,
    priority: Priority,
}

#[derive(Debug)]
pub(super) struct SplitState {
    /// Offset of the next group to start.
    next: u32,
    /// Groups that run, by their first offset.
    running: BTreeMap<u32, Running>,
    /// Finished pieces by their first offset.
    finished: BTreeMap<u32, Arc<FinishedPiece>>,
    /// The first row that failed for good.
    failed: Option<(u32, String)>,
    /// The fetch that is served; a newer one takes over.
    pub(super) fetch: Option<u64>,
    /// The fetch waits for this offset.
    waits_for: Option<u32>,
    /// Differs for each lease and counts its restarts: groups of an earlier one are of no use.
    generation: u64,
    pub(super) steps: SplitProgress,
    /// Cancels the running groups when the lease is revoked.
    pub(super) cancel: CancellationToken,
    /// Wakes the fetch of this split.
    pub(super) changed: Arc<Notify>,
}

impl SplitState {
    /// Lease number `lease` of this worker, from offset `from` on.
    pub(super) fn new(from: u32, lease: u32) -> Self {
        Self {
            next: from,
            running: BTreeMap::new(),
            finished: BTreeMap::new(),
            failed: None,
            fetch: None,
            waits_for: None,
            generation: u64::from(lease) << 32,
            steps: SplitProgress::default(),
            cancel: CancellationToken::new(),
            changed: Arc::default(),
        }
    }

    /// Whether a group is left to start.
    pub(super) fn has_next(&self, len: u32) -> bool {
        self.next < len && self.failed.is_none()
    }

    /// Cancels what runs and ends its fetch.
    pub(super) fn revoke(&self) {
        self.cancel.cancel();
        self.changed.notify_waiters();
    }

    /// The offsets of the next group to start, if any is left. Groups end at multiples of `group_rows`, wherever
    /// the split was begun.
    pub(super) fn next_group(&self, len: u32, group_rows: u32) -> Option<Range<u32>> {
        if !self.has_next(len) {
            return None;
        }
        let end = (self.next / group_rows + 1) * group_rows;
        Some(self.next..end.min(len))
    }

    /// Whether its consumer waits while it has no piece and nothing runs.
    pub(super) fn is_starving(&self) -> bool {
        self.waits_for.is_some() && self.running.is_empty() && self.finished.is_empty()
    }

    /// Whether its consumer waits while it has no finished piece.
    pub(super) fn is_awaited(&self) -> bool {
        self.waits_for.is_some() && self.finished.is_empty()
    }

    pub(super) fn running_groups(&self) -> usize {
        self.running.len()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let finished = self.finished.values().map(|piece| piece.data.len() as u64);
        self.running.values().map(|group| group.bytes).sum::<u64>() + finished.sum::<u64>()
    }

    /// The most urgent of its groups that run.
    pub(super) fn priority(&self) -> Option<Priority> {
        self.running.values().map(|group| group.priority).min()
    }

    pub(super) fn start(&mut self, offsets: &Range<u32>, bytes: u64, priority: Priority) -> u64 {
        self.next = offsets.end;
        self.running.insert(offsets.start, Running { bytes, priority });
        self.generation
    }

    pub(super) fn finish(
        &mut self,
        generation: u64,
        offsets: &Range<u32>,
        result: Result<FinishedPiece, String>,
    ) {
        if generation != self.generation {
            return;
        }
        self.running.remove(&offsets.start);
        match result {
            Ok(piece) => {
                self.finished.insert(offsets.start, Arc::new(piece));
            }
            Err(message) => self.fail(offsets.start, message),
        }
        self.changed.notify_waiters();
    }

    /// The round that was begun at `start` is finished: its pieces from there on, up to the split's end.
    pub(super) fn finish_round(&mut self, generation: u64, start: u32, pieces: Vec<Arc<FinishedPiece>>) {
        if generation == self.generation {
            self.running.remove(&start);
            self.take_over(start, pieces);
        }
    }

    /// Takes what was computed for another stream of its round, unless it is on its way here.
    pub(super) fn supply(&mut self, pieces: Vec<Arc<FinishedPiece>>) {
        if self.failed.is_none() && self.running.is_empty() && self.finished.is_empty() {
            self.take_over(self.next, pieces);
        }
    }

    fn take_over(&mut self, start: u32, pieces: Vec<Arc<FinishedPiece>>) {
        for piece in pieces.into_iter().filter(|piece| piece.header.to > start) {
            self.next = self.next.max(piece.header.to);
            self.finished.insert(piece.header.from, piece);
        }
        self.changed.notify_waiters();
    }

    pub(super) fn fail(&mut self, offset: u32, message: String) {
        if self.failed.as_ref().is_none_or(|(first, _)| offset < *first) {
            self.failed = Some((offset, message));
        }
        self.changed.notify_waiters();
    }

    /// Why nothing comes at `from`, once everything before the failure has been taken.
    pub(super) fn failure(&self, from: u32) -> Option<String> {
        let earlier_runs = self.running.range(..=from).next_back().is_some();
        self.failed
            .as_ref()
            .filter(|(offset, _)| *offset <= from || !earlier_runs)
            .map(|(_, message)| message.clone())
    }

    pub(super) fn is_computed(&self, len: u32) -> bool {
        (self.next >= len || self.failed.is_some()) && self.running.is_empty()
    }

    pub(super) fn open_fetch(&mut self, number: u64, from: u32) {
        // The fetch before this one ends.
        self.changed.notify_waiters();
        self.fetch = Some(number);
        self.waits_for = Some(from);
        // What lies before has reached the consumer, from here or from another worker.
        self.finished.retain(|_, piece| piece.header.to > from);
        if self.running.is_empty() && self.finished.is_empty() && self.next < from {
            self.next = from;
        }
        let failed_there = self.failed.as_ref().is_some_and(|(offset, _)| *offset <= from);
        if !failed_there && !self.will_have(from) {
            // Asked for rows that were handed out before, to a consumer that has lost them: compute them again.
            self.generation += 1;
            self.failed = None;
            self.running.clear();
            self.finished.clear();
            self.next = from;
        }
    }

    /// Whether the row at `from` is finished, runs, or lies ahead.
    fn will_have(&self, from: u32) -> bool {
        let finished =
            self.finished.range(..=from).next_back().is_some_and(|(_, piece)| piece.header.to > from);
        // A running group reaches to the next one's start, at most to `next`.
        let running = self.running.range(..=from).next_back().is_some_and(|(start, _)| {
            let after = self.running.range(start + 1..).next().map(|(next, _)| *next);
            let after =
                after.into_iter().chain(self.finished.range(start + 1..).next().map(|(next, _)| *next));
            from < after.min().unwrap_or(self.next)
        });
        finished || running || from >= self.next
    }

    pub(super) fn take_piece(&mut self, from: u32) -> Option<Arc<FinishedPiece>> {
        let (start, piece) = self.finished.range(..=from).next_back()?;
        if piece.header.to <= from {
            return None;
        }
        let start = *start;
        self.waits_for = None;
        self.finished.remove(&start)
    }

    pub(super) fn waits_for(&mut self, from: u32) {
        self.waits_for = Some(from);
    }

    pub(super) fn close_fetch(&mut self, number: u64) {
        if self.fetch == Some(number) {
            self.fetch = None;
            self.waits_for = None;
        }
    }
}

#[cfg(test)]
mod tests;
