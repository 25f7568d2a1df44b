//! A leased split: its running groups, its finished pieces, and the fetch that receives the pieces.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::MAX_LOST_WORKERS;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::job::JobContext;
use super::piece::{FinishedPiece, PieceLookup};
use super::pool::Priority;
use super::progress::SplitProgress;

/// A running group of the split.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// Bytes that admission has counted for the group.
    bytes: u64,
    priority: Priority,
}

/// A leased split, shared between the engine's state and the split's fetch. Lock order: a thread that holds a split's
/// lock must not acquire the engine's lock.
pub(crate) struct SharedSplit(Mutex<SplitState>);

impl SharedSplit {
    pub(super) fn new(state: SplitState) -> Self {
        Self(Mutex::new(state))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SplitState> {
        self.0.lock().expect("no thread panics while it holds a split")
    }
}

/// An open fetch. Dropping it closes the fetch.
pub(crate) struct OpenFetch {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    pub(super) number: u64,
    /// Wakes the fetch when the split has changed.
    pub(crate) changed: Arc<Notify>,
    pub(super) shared: Arc<SharedSplit>,
}

impl Drop for OpenFetch {
    fn drop(&mut self) {
        self.shared.lock().close_fetch(self.number);
    }
}

/// What the losses of earlier workers mean for a split.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Caution {
    /// The groups run ahead of the consumer.
    None,
    /// One group runs at a time, and only when the consumer waits for its first row. If this worker is lost, the consumer
    /// therefore continues at the group that has crashed it.
    OneGroup,
    /// As [`Self::OneGroup`], but the next group is given up.
    GiveUpNext,
    /// As [`Self::OneGroup`], but these rows are given up.
    GivenUp(Range<u32>),
}

#[cfg_attr(test, derive(Clone))]
pub(super) struct SplitState {
    /// `None` until the job is loaded.
    job: Option<Arc<JobContext>>,
    is_revoked: bool,
    caution: Caution,
    /// First offset of the next group.
    next: u32,
    /// Running groups by their first offset.
    running: BTreeMap<u32, Running>,
    /// Finished pieces by their first offset.
    finished: BTreeMap<u32, Arc<FinishedPiece>>,
    /// The first failure in the split, which ends the job.
    failed: Option<SplitFailure>,
    /// Number of the open fetch. A newer fetch replaces an older one.
    pub(super) fetch: Option<u64>,
    /// The offset that the fetch waits for.
    awaited_offset: Option<u32>,
    /// Changes whenever the split is leased or restarted. Results of groups from an earlier generation are dropped.
    generation: u64,
    pub(super) progress: SplitProgress,
    /// Cancels the running groups when the lease is revoked.
    pub(super) cancel: CancellationToken,
    /// Wakes the fetch of this split.
    pub(super) changed: Arc<Notify>,
    /// Whether the fetch must be notified.
    is_changed: bool,
}

#[derive(Debug, Clone)]
struct SplitFailure {
    offset: u32,
    message: String,
}

impl SplitState {
    /// Creates the state of a new lease, starting at offset `from`. `lease` is the lease's sequence number on this
    /// worker.
    pub(super) fn new(from: u32, lease: u32) -> Self {
        Self {
            job: None,
            is_revoked: false,
            caution: Caution::None,
            next: from,
            running: BTreeMap::new(),
            finished: BTreeMap::new(),
            failed: None,
            fetch: None,
            awaited_offset: None,
            generation: u64::from(lease) << 32,
            progress: SplitProgress::default(),
            cancel: CancellationToken::new(),
            changed: Arc::default(),
            is_changed: false,
        }
    }

    /// Sets the number of workers that were lost before they had computed the split. After [`MAX_LOST_WORKERS`] losses, the
    /// rows of the first group are reported as failed, without being computed.
    pub(super) fn set_lost_workers(&mut self, lost: u32) {
        self.caution = match lost + 1 {
            losses if losses < MAX_LOST_WORKERS => Caution::None,
            MAX_LOST_WORKERS => Caution::OneGroup,
            _ => Caution::GiveUpNext,
        };
    }

    /// Whether the rows of a started group are reported as failed, without being computed.
    pub(super) fn is_given_up(&self, offsets: &Range<u32>) -> bool {
        matches!(&self.caution, Caution::GivenUp(rows) if rows.contains(&offsets.start))
    }

    /// First offset of the next group.
    pub(super) fn next_offset(&self) -> u32 {
        self.next
    }

    /// Whether another group can start.
    pub(super) fn has_next(&self, len: u32) -> bool {
        let may_start = self.caution == Caution::None || self.is_starving();
        self.next < len && self.failed.is_none() && may_start
    }

    /// Sets the job, or `None` if the job is not loaded yet.
    pub(super) fn set_job(&mut self, job: Option<&Arc<JobContext>>) {
        self.job = job.cloned();
    }

    /// Cancels the running groups, releases the pieces and ends the fetch. An open fetch keeps the revoked split until the
    /// consumer continues.
    pub(super) fn revoke(&mut self) {
        self.is_revoked = true;
        self.cancel.cancel();
        self.job = None;
        self.running.clear();
        self.finished.clear();
        self.awaited_offset = None;
    }

    /// Whether the split has changed since the last call, so that its fetch must be notified.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Returns the offsets of the next group. Groups end at multiples of `group_rows`, regardless of the lease's start
    /// offset.
    pub(super) fn next_group(&self, len: u32, group_rows: u32) -> Option<Range<u32>> {
        if !self.has_next(len) {
            return None;
        }
        let end = (self.next / group_rows + 1) * group_rows;
        // Rows before those that were given up are computed separately.
        let end = match &self.caution {
            Caution::GivenUp(rows) if self.next < rows.start => end.min(rows.start),
            _ => end,
        };
        Some(self.next..end.min(len))
    }

    /// Whether the consumer is waiting, and no piece is finished or being computed.
    pub(super) fn is_starving(&self) -> bool {
        self.awaited_offset.is_some() && self.running.is_empty() && self.finished.is_empty()
    }

    /// Whether the consumer is waiting, and no piece is finished.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited_offset.is_some() && self.finished.is_empty()
    }

    pub(super) fn running_groups(&self) -> usize {
        self.running.len()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let finished = self.finished.values().map(|piece| piece.data.len() as u64);
        self.running.values().map(|group| group.bytes).sum::<u64>() + finished.sum::<u64>()
    }

    /// Returns the priority of the most urgent running group.
    pub(super) fn priority(&self) -> Option<Priority> {
        self.running.values().map(|group| group.priority).min()
    }

    /// Records that a group has started. Returns the generation that the group must report when it finishes.
    pub(super) fn start(&mut self, offsets: &Range<u32>, bytes: u64, priority: Priority) -> u64 {
        self.next = offsets.end;
        if self.caution == Caution::GiveUpNext {
            self.caution = Caution::GivenUp(offsets.clone());
        }
        self.running.insert(offsets.start, Running { bytes, priority });
        self.generation
    }

    /// Stores the pieces of the group that started at offset `start`. For a coordinated job, the group is a whole
    /// round.
    pub(super) fn finish_group(&mut self, generation: u64, start: u32, pieces: Vec<Arc<FinishedPiece>>) {
        if generation == self.generation {
            self.running.remove(&start);
            self.add_pieces(start, pieces);
        }
    }

    /// Records that the group that started at `start` failed.
    pub(super) fn fail_group(&mut self, generation: u64, start: u32, message: String) {
        if generation == self.generation {
            self.running.remove(&start);
            self.fail(start, message);
        }
    }

    /// Stores pieces that were computed together with another stream of the round. Ignores them if this split has its
    /// own pieces, running groups, or a failure.
    pub(super) fn supply(&mut self, pieces: Vec<Arc<FinishedPiece>>) {
        if self.failed.is_none() && self.running.is_empty() && self.finished.is_empty() {
            self.add_pieces(self.next, pieces);
        }
    }

    /// Stores the pieces that end after offset `start`.
    fn add_pieces(&mut self, start: u32, pieces: Vec<Arc<FinishedPiece>>) {
        for piece in pieces.into_iter().filter(|piece| piece.header.end > start) {
            self.next = self.next.max(piece.header.end);
            self.finished.insert(piece.header.start, piece);
        }
        self.is_changed = true;
    }

    pub(super) fn fail(&mut self, offset: u32, message: String) {
        if self.failed.as_ref().is_none_or(|failure| offset < failure.offset) {
            self.failed = Some(SplitFailure { offset, message });
        }
        self.is_changed = true;
    }

    /// Returns the failure message for the row at offset `from`, unless a group that started at or before `from` is
    /// still running.
    pub(super) fn failure(&self, from: u32) -> Option<String> {
        let earlier_runs = self.running.range(..=from).next_back().is_some();
        let failure = self.failed.as_ref().filter(|failure| failure.offset <= from || !earlier_runs);
        failure.map(|failure| failure.message.clone())
    }

    pub(super) fn is_computed(&self, len: u32) -> bool {
        (self.next >= len || self.failed.is_some()) && self.running.is_empty()
    }

    pub(super) fn open_fetch(&mut self, number: u64, from: u32) {
        // The previous fetch ends.
        self.is_changed = true;
        self.fetch = Some(number);
        self.awaited_offset = Some(from);
        // The consumer has received all rows before `from`, possibly from another worker.
        self.finished.retain(|_, piece| piece.header.end > from);
        if self.running.is_empty() && self.finished.is_empty() && self.next < from {
            self.next = from;
        }
        let failed_there = self.failed.as_ref().is_some_and(|failure| failure.offset <= from);
        if !failed_there && !self.will_have(from) {
            // The consumer needs rows that it has already received, so they are computed again.
            self.generation += 1;
            self.failed = None;
            self.running.clear();
            self.finished.clear();
            self.next = from;
        }
    }

    /// Whether the row at offset `from` is finished, is being computed, or belongs to a group that has not started.
    fn will_have(&self, from: u32) -> bool {
        let finished =
            self.finished.range(..=from).next_back().is_some_and(|(_, piece)| piece.header.end > from);
        // A running group ends where the next group or piece starts, or at `next`.
        let running = self.running.range(..=from).next_back().is_some_and(|(start, _)| {
            let after = self.running.range(start + 1..).next().map(|(next, _)| *next);
            let after =
                after.into_iter().chain(self.finished.range(start + 1..).next().map(|(next, _)| *next));
            from < after.min().unwrap_or(self.next)
        });
        finished || running || from >= self.next
    }

    /// Looks up the piece at offset `from` for fetch `number`. Also returns whether the lookup has changed the split.
    pub(super) fn next_piece(&mut self, number: u64, split: SplitRef, from: u32) -> (PieceLookup, bool) {
        if self.is_revoked || self.fetch != Some(number) {
            return (PieceLookup::Unknown, false);
        }
        let Some(job) = self.job.clone() else {
            return (self.failure(from).map_or(PieceLookup::Wait, PieceLookup::Failed), false);
        };
        if from >= job.layout().split_len(split) {
            return (PieceLookup::End(job), false);
        }
        let failure = self.failure(from);
        if let Some(piece) = self.take_piece(from) {
            return (PieceLookup::Piece(job, piece), true);
        }
        if let Some(message) = failure {
            return (PieceLookup::Failed(message), false);
        }
        (PieceLookup::Wait, self.wait_for(from))
    }

    /// Records that the fetch waits for the row at offset `from`. Returns whether the fetch was not waiting before.
    fn wait_for(&mut self, from: u32) -> bool {
        self.awaited_offset.replace(from).is_none()
    }

    /// Removes and returns the piece that contains the row at offset `from`.
    pub(super) fn take_piece(&mut self, from: u32) -> Option<Arc<FinishedPiece>> {
        let (start, piece) = self.finished.range(..=from).next_back()?;
        if piece.header.end <= from {
            return None;
        }
        let start = *start;
        self.awaited_offset = None;
        self.finished.remove(&start)
    }

    pub(super) fn close_fetch(&mut self, number: u64) {
        if self.fetch == Some(number) {
            self.fetch = None;
            self.awaited_offset = None;
        }
    }
}

#[cfg(test)]
mod tests;
