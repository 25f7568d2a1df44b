//! The recent positions of one consumer. If operators change the number of rows, the position at a step depends on the rows
//! that the consumer has received. Each consumer therefore records its own positions.

use std::collections::VecDeque;

use crate::layout::StreamPosition;

/// Number of batches in a history. Training loops prefetch batches, and ranks may be several steps apart.
pub const HISTORY_BATCHES: usize = 256;

/// A step of a job: the number of batches that each consumer has received since the start of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId {
    /// The number of epochs that the consumer has completed since it started. The other fields then count batches of the
    /// next epoch. If `None`, the other fields count the batches of all epochs.
    pub epochs: Option<u32>,
    /// The number of batches that every stream of the consumer has delivered.
    pub batches_per_stream: u64,
    /// The number of additional batches, at most one for each stream of the consumer.
    pub extra_batches: u32,
}

impl StepId {
    /// Returns the number of batches that a consumer with `streams` streams has received at this step.
    pub fn batches(&self, streams: usize) -> u64 {
        let streams = streams as u64;
        self.batches_per_stream
            .saturating_mul(streams)
            .saturating_add(u64::from(self.extra_batches).min(streams))
    }

    /// Whether this step is the end of an epoch. Consumers may have different numbers of batches in an epoch. A consumer
    /// reaches this step when it receives its last batch of the epoch; prefetching that batch is not enough.
    fn is_epoch_end(&self) -> bool {
        self.epochs.unwrap_or(0) > 0 && self.batches_per_stream == 0 && self.extra_batches == 0
    }

    /// Whether this step is the start of the job.
    pub fn is_start(&self) -> bool {
        self.epochs.unwrap_or(0) == 0 && self.batches_per_stream == 0 && self.extra_batches == 0
    }
}

/// Consecutive rows of one stream that a consumer has delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredRun {
    /// The index of the stream in the list of the consumer's streams.
    pub stream_index: u32,
    /// The next undelivered row of the stream after this run.
    pub position: StreamPosition,
    /// The epoch of the batch that the run forms; `None` if operators removed all rows of the run.
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

/// The start position of a consumer, and the position after each of its recent batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionHistory {
    start: Vec<(u32, StreamPosition)>,
    base: HistoryBase,
    /// Recorded runs, oldest first. A run without rows is stored before the batch that was delivered next.
    runs: VecDeque<DeliveredRun>,
    /// The number of batches at the end of `runs` that the consumer has not received yet.
    prefetched: u64,
    is_complete: bool,
}

/// The position of a consumer before the first run of its history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryBase {
    /// The next undelivered row of each stream, in the order of the consumer's streams.
    pub positions: Vec<StreamPosition>,
    /// The number of batches that the consumer received before the first run.
    pub count: BatchCount,
}

/// The number of batches that a consumer has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCount {
    /// The number of batches received in all epochs.
    pub batches: u64,
    /// The epoch of the last batch; before the first batch, the epoch in which the consumer started.
    pub epoch: u32,
    /// The number of batches received in `epoch`.
    pub epoch_batches: u64,
}

impl BatchCount {
    fn incremented(self, epoch: u32) -> Self {
        let epoch_batches = if epoch == self.epoch { self.epoch_batches.saturating_add(1) } else { 1 };
        Self { batches: self.batches.saturating_add(1), epoch, epoch_batches }
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
    /// Returns a message that describes the inconsistency, if the parts are inconsistent.
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
                "invalid position history: expected {streams} base positions, one per stream, got {}",
                base.positions.len()
            ));
        }
        if runs.len() > HISTORY_BATCHES + streams {
            return Err(format!(
                "invalid position history: expected at most {HISTORY_BATCHES} runs plus one per stream, got {} runs of {streams} streams",
                runs.len()
            ));
        }
        if let Some(run) = runs.iter().find(|run| run.stream_index as usize >= streams) {
            return Err(format!(
                "invalid position history: stream index {} is not below the number of streams {streams}",
                run.stream_index
            ));
        }
        Ok(Self { start, base, runs: runs.into(), prefetched, is_complete })
    }

    /// Returns the start position of each stream.
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

    /// The number of batches at the end of the history that the consumer has not received yet.
    pub fn prefetched(&self) -> u64 {
        self.prefetched
    }

    /// Adds `batches` to the number of batches that the consumer has not received yet.
    pub fn add_prefetched(&mut self, batches: u64) {
        self.prefetched += batches;
    }

    /// Returns the number of batches since the start, including prefetched batches.
    pub fn batches(&self) -> u64 {
        let recorded = self.runs.iter().filter(|run| run.batch_epoch.is_some()).count();
        self.base.count.batches.saturating_add(recorded as u64)
    }

    /// Whether no batch follows the last run.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Records that no batch follows the last run.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Adds a run. Evicts the oldest batch if the history is full.
    pub fn push(&mut self, run: DeliveredRun) {
        if run.batch_epoch.is_none() {
            // Consecutive removed runs of one stream are merged: only the last position before the next batch is needed.
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

    /// Looks up the position of the consumer after the last batch of a step.
    pub fn find(&self, step: StepId) -> StepLookup {
        let wanted = step.batches(self.start.len());
        let epoch = step.epochs.map(|epochs| first_epoch(&self.start).saturating_add(epochs));
        let is_in_step = |at: BatchCount| match epoch {
            None => at.batches <= wanted,
            Some(epoch) => at.epoch < epoch || (at.epoch == epoch && at.epoch_batches <= wanted),
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

    /// Returns the result for a step that ends after the first `runs` runs, where the batch count is `at`.
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
        if at.epoch == epoch && at.epoch_batches == wanted {
            return true;
        }
        let positions = self.positions_after(self.runs.len());
        let earliest = positions.iter().map(|(_, position)| position.epoch).min().unwrap_or(0);
        earliest > epoch || (wanted == 0 && earliest == epoch)
    }

    /// Returns the position of each stream after the first `runs` runs.
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
