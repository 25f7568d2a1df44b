//! The recent positions of one consumer. Where operators change the number of rows, the position at a step depends on the
//! rows that the consumer has received, so each consumer records its own positions.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::layout::StreamPosition;

/// Batches in a history: training loops prefetch batches, and ranks may be several steps apart.
pub const HISTORY_BATCHES: usize = 256;

/// A step of a job, identified by the number of batches that each consumer has received since the start of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId {
    /// Complete epochs, counted from the epoch in which the consumer started; `rounds` and `rest` count batches of the next
    /// epoch. `None`: `rounds` and `rest` count the batches of all epochs.
    pub epochs: Option<u32>,
    /// Batches of each stream of the consumer.
    pub rounds: u64,
    /// Additional batches, at most one for each stream of the consumer.
    pub rest: u32,
}

impl StepId {
    /// Returns the number of batches of a consumer with `streams` streams.
    pub fn batches(&self, streams: usize) -> u64 {
        let streams = streams as u64;
        self.rounds.saturating_mul(streams).saturating_add(u64::from(self.rest).min(streams))
    }

    /// Whether this step is the end of an epoch. Consumers may have different numbers of batches in an epoch, so a consumer
    /// reaches this step only by receiving its last batch of the epoch, not by a prefetched batch.
    fn is_epoch_end(&self) -> bool {
        self.epochs.unwrap_or(0) > 0 && self.rounds == 0 && self.rest == 0
    }

    /// Whether this step is the start of the job.
    pub fn is_start(&self) -> bool {
        self.epochs.unwrap_or(0) == 0 && self.rounds == 0 && self.rest == 0
    }
}

/// Rows that a consumer took from one of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredRun {
    /// Index of the stream among the streams of the consumer.
    pub stream_index: u32,
    /// The next undelivered row of the stream after this run.
    pub position: StreamPosition,
    /// The epoch of the batch that the run forms; `None` where operators removed all of its rows.
    pub batch_epoch: Option<u32>,
}

/// Result of looking up a step in a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepLookup {
    /// The next undelivered row of each stream of the consumer at the step.
    Found(Vec<(u32, StreamPosition)>),
    /// The consumer has not reached the step.
    NotReached,
    /// The history no longer contains the step.
    Evicted,
}

/// The start position of a consumer and the positions after each of its last batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionHistory {
    start: Vec<(u32, StreamPosition)>,
    base: HistoryBase,
    /// Runs without rows precede the batch that was taken next.
    runs: VecDeque<DeliveredRun>,
    /// Batches at the end of `runs` that the consumer has not received yet.
    prefetched: u64,
    is_complete: bool,
}

/// The position of a consumer before the first run of its history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryBase {
    /// The next undelivered row of each stream, in the order of the consumer's streams.
    pub positions: Vec<StreamPosition>,
    /// Batches received before.
    pub count: BatchCount,
}

/// The number of batches that a consumer has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCount {
    /// All batches.
    pub batches: u64,
    /// The epoch of the last batch; before the first batch, the epoch in which the consumer started.
    pub epoch: u32,
    /// Batches of that epoch.
    pub of_epoch: u64,
}

impl BatchCount {
    fn incremented(self, epoch: u32) -> Self {
        let of_epoch = if epoch == self.epoch { self.of_epoch.saturating_add(1) } else { 1 };
        Self { batches: self.batches.saturating_add(1), epoch, of_epoch }
    }
}

impl PositionHistory {
    /// Creates the history of a consumer that has received no batch.
    pub fn new(start: Vec<(u32, StreamPosition)>) -> Self {
        let positions: Vec<StreamPosition> = start.iter().map(|(_, position)| *position).collect();
        let epoch = first_epoch(&start);
        let base = HistoryBase { positions, count: BatchCount { epoch, ..BatchCount::default() } };
        Self { start, base, runs: VecDeque::new(), prefetched: 0, is_complete: false }
    }

    /// Creates a history from parts that another process sent.
    ///
    /// # Errors
    /// Describes the contradiction, if the parts contradict each other.
    pub fn from_parts(
        start: Vec<(u32, StreamPosition)>,
        base: HistoryBase,
        runs: Vec<DeliveredRun>,
        prefetched: u64,
        is_complete: bool,
    ) -> Result<Self, String> {
        let streams = start.len();
        if base.positions.len() != streams {
            return Err(format!(
                "a position history of {streams} streams has {} base positions",
                base.positions.len()
            ));
        }
        if runs.len() > HISTORY_BATCHES + streams {
            return Err(format!(
                "a position history has {} runs, more than {HISTORY_BATCHES} batches of {streams} streams",
                runs.len()
            ));
        }
        if let Some(run) = runs.iter().find(|run| run.stream_index as usize >= streams) {
            return Err(format!(
                "a position history of {streams} streams has stream index {}",
                run.stream_index
            ));
        }
        Ok(Self { start, base, runs: runs.into(), prefetched, is_complete })
    }

    /// The start position: each stream with its next undelivered row.
    pub fn start(&self) -> &[(u32, StreamPosition)] {
        &self.start
    }

    /// The position before the first run.
    pub fn base(&self) -> &HistoryBase {
        &self.base
    }

    /// The runs, oldest first.
    pub fn runs(&self) -> impl Iterator<Item = &DeliveredRun> {
        self.runs.iter()
    }

    /// Batches at the end of the history that the consumer has not received yet.
    pub fn prefetched(&self) -> u64 {
        self.prefetched
    }

    /// Marks `batches` more of the last batches as not received yet.
    pub fn add_prefetched(&mut self, batches: u64) {
        self.prefetched += batches;
    }

    /// Returns the number of batches since the start, prefetched batches included.
    pub fn batches(&self) -> u64 {
        let recorded = self.runs.iter().filter(|run| run.batch_epoch.is_some()).count();
        self.base.count.batches.saturating_add(recorded as u64)
    }

    /// Whether no batch follows the last run.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Records that no batch follows.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Adds a run and evicts the oldest batch where the history is full.
    pub fn push(&mut self, run: DeliveredRun) {
        if run.batch_epoch.is_none() {
            // Before one batch, the last position of each stream is enough for all removed rows.
            let removed = self.runs.iter_mut().rev().take_while(|other| other.batch_epoch.is_none());
            if let Some(other) = removed.into_iter().find(|other| other.stream_index == run.stream_index) {
                other.position = run.position;
                return;
            }
        }
        self.runs.push_back(run);
        if self.runs.len() > HISTORY_BATCHES {
            self.evict_batch();
        }
    }

    /// Moves the oldest batch and the removed rows before it to the base.
    fn evict_batch(&mut self) {
        if self.runs.iter().all(|run| run.batch_epoch.is_none()) {
            return;
        }
        while let Some(run) = self.runs.pop_front() {
            self.base.positions[run.stream_index as usize] = run.position;
            if let Some(epoch) = run.batch_epoch {
                self.base.count = self.base.count.incremented(epoch);
                return;
            }
        }
    }

    /// Returns the position of the consumer after the last batch of a step.
    pub fn find(&self, step: StepId) -> StepLookup {
        let wanted = step.batches(self.start.len());
        let epoch = step.epochs.map(|epochs| first_epoch(&self.start).saturating_add(epochs));
        let is_in_step = |at: BatchCount| match epoch {
            None => at.batches <= wanted,
            Some(epoch) => at.epoch < epoch || (at.epoch == epoch && at.of_epoch <= wanted),
        };
        let mut at = self.base.count;
        if at.batches > 0 && !is_in_step(at) {
            return StepLookup::Evicted;
        }
        let mut runs = 0;
        for (index, run) in self.runs.iter().enumerate() {
            let Some(batch_epoch) = run.batch_epoch else { continue };
            let next = at.incremented(batch_epoch);
            if !is_in_step(next) {
                return self.lookup_after(step, at, runs);
            }
            (at, runs) = (next, index + 1);
        }
        if self.is_complete || self.is_last_of_step(at, epoch, wanted) {
            self.lookup_after(step, at, runs)
        } else {
            StepLookup::NotReached
        }
    }

    /// The result for a step that ends after the first `runs` runs, with the batch count `at`.
    fn lookup_after(&self, step: StepId, at: BatchCount, runs: usize) -> StepLookup {
        let is_received = at.batches <= self.batches().saturating_sub(self.prefetched);
        if step.is_epoch_end() && !is_received {
            StepLookup::NotReached
        } else {
            StepLookup::Found(self.positions_after(runs))
        }
    }

    /// Whether no batch after the last run can belong to the step.
    fn is_last_of_step(&self, at: BatchCount, epoch: Option<u32>, wanted: u64) -> bool {
        let Some(epoch) = epoch else { return at.batches == wanted };
        if at.epoch == epoch && at.of_epoch == wanted {
            return true;
        }
        let positions = self.positions_after(self.runs.len());
        let earliest = positions.iter().map(|(_, position)| position.epoch).min().unwrap_or(0);
        earliest > epoch || (wanted == 0 && earliest == epoch)
    }

    /// The position of each stream after the first `runs` runs.
    fn positions_after(&self, runs: usize) -> Vec<(u32, StreamPosition)> {
        let streams = self.start.iter().map(|(stream, _)| *stream);
        let mut positions: Vec<_> = streams.zip(self.base.positions.iter().copied()).collect();
        for run in self.runs.iter().take(runs) {
            positions[run.stream_index as usize].1 = run.position;
        }
        positions
    }
}

fn first_epoch(start: &[(u32, StreamPosition)]) -> u32 {
    start.iter().map(|(_, position)| position.epoch).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
