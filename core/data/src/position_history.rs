//! Where a consumer stood behind each of its last batches. Where operators change the number of rows only its rows tell,
//! so this is what others must know of it to say where all of them stand at the same step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::layout::StreamPosition;

/// Batches behind which it is known where the consumer stood: training loops may take batches ahead of their steps, and ranks
/// may be some steps apart.
pub const KEPT_BATCHES: usize = 256;

/// A step of a job's consumers, by what each has had so far, since the job began where it was opened at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId {
    /// Epochs before, counted from the one in which the consumer began: it has all batches of these, and of the next one as many
    /// as are said, or all. `None`: batches are counted over all epochs.
    pub epochs: Option<u32>,
    /// Batches for each slot of the consumer.
    pub rounds: u64,
    /// Batches in addition, as far as it has slots.
    pub rest: u32,
}

impl StepId {
    /// Batches of a consumer with so many slots.
    pub fn batches(&self, slots: usize) -> u64 {
        let slots = slots as u64;
        self.rounds.saturating_mul(slots).saturating_add(u64::from(self.rest).min(slots))
    }

    /// Whether it is the end of an epoch: of what comes behind it no batch was had, and of what comes before it all of them. What consumers
    /// with more batches do once others have none is for their loops to say, so this is no step that one can be told to have come to
    /// before it has.
    fn is_end(&self) -> bool {
        self.epochs.unwrap_or(0) > 0 && self.rounds == 0 && self.rest == 0
    }

    /// Whether nothing has been had before it.
    pub fn is_start(&self) -> bool {
        self.epochs.unwrap_or(0) == 0 && self.rounds == 0 && self.rest == 0
    }
}

/// One run of rows that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredRun {
    /// Place of its stream among those of the consumer.
    pub lane: u32,
    /// The stream's next undelivered row behind it.
    pub position: StreamPosition,
    /// The epoch of the batch that it is; `None` where it has no rows, since operators removed them.
    pub batch_of: Option<u32>,
}

/// What is known of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepLookup {
    /// The next undelivered row of each stream of the consumer there.
    At(Vec<(u32, StreamPosition)>),
    /// The consumer has not come there.
    Ahead,
    /// It came there so long ago that it is not known any more.
    Gone,
}

/// Where a consumer began, and its last batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionHistory {
    began: Vec<(u32, StreamPosition)>,
    /// Behind the batches before the first mark.
    base: HistoryBase,
    /// Removed rows come in front of the batch that was taken next.
    marks: VecDeque<DeliveredRun>,
    /// Batches at the end that the consumer has not had: those that it will have next.
    foreseen: u64,
    /// Whether nothing follows.
    is_over: bool,
}

/// Where a consumer stood once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryBase {
    /// The next undelivered row of each stream, in the order in which the consumer has them.
    pub positions: Vec<StreamPosition>,
    /// What it had had.
    pub count: BatchCount,
}

/// Batches that a consumer has had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCount {
    /// All of them.
    pub batches: u64,
    /// The epoch of the last one; the one in which the consumer began where there was none.
    pub epoch: u32,
    /// Those of that epoch.
    pub of_epoch: u64,
}

impl BatchCount {
    /// With one more, of this epoch.
    fn and_one(self, epoch: u32) -> Self {
        let of_epoch = if epoch == self.epoch { self.of_epoch.saturating_add(1) } else { 1 };
        Self { batches: self.batches.saturating_add(1), epoch, of_epoch }
    }
}

impl PositionHistory {
    /// A consumer that stands there and has had nothing.
    pub fn begin(began: Vec<(u32, StreamPosition)>) -> Self {
        let positions: Vec<StreamPosition> = began.iter().map(|(_, position)| *position).collect();
        let epoch = first_epoch(&began);
        let base = HistoryBase { positions, count: BatchCount { epoch, ..BatchCount::default() } };
        Self { began, base, marks: VecDeque::new(), foreseen: 0, is_over: false }
    }

    /// What another process sent.
    ///
    /// # Errors
    /// One clause where its parts do not go together.
    pub fn of_parts(
        began: Vec<(u32, StreamPosition)>,
        base: HistoryBase,
        marks: Vec<DeliveredRun>,
        foreseen: u64,
        is_over: bool,
    ) -> Result<Self, String> {
        let lanes = began.len();
        if base.positions.len() != lanes {
            return Err(format!("marks of {lanes} streams say where {} stood", base.positions.len()));
        }
        if marks.len() > KEPT_BATCHES + lanes || marks.iter().any(|mark| mark.lane as usize >= lanes) {
            return Err(format!("there are too many marks, or some of streams beyond {lanes}"));
        }
        Ok(Self { began, base, marks: marks.into(), foreseen, is_over })
    }

    /// Where it began: each stream and its next undelivered row.
    pub fn began(&self) -> &[(u32, StreamPosition)] {
        &self.began
    }

    /// Where it stood before the first mark.
    pub fn base(&self) -> &HistoryBase {
        &self.base
    }

    /// The marks, the oldest in front.
    pub fn marks(&self) -> impl Iterator<Item = &DeliveredRun> {
        self.marks.iter()
    }

    /// Batches at the end that the consumer has not had.
    pub fn foreseen(&self) -> u64 {
        self.foreseen
    }

    /// So many more of the last batches were not had.
    pub fn foresee(&mut self, batches: u64) {
        self.foreseen += batches;
    }

    /// Batches that the consumer has had or will have next, those before the first mark included.
    pub fn batches(&self) -> u64 {
        let kept = self.marks.iter().filter(|mark| mark.batch_of.is_some()).count();
        self.base.count.batches.saturating_add(kept as u64)
    }

    /// Whether nothing follows the last one.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Nothing follows.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Notes what was taken.
    pub fn push(&mut self, mark: DeliveredRun) {
        if mark.batch_of.is_none() {
            // Of rows that were removed in front of one batch, one place for each stream is enough.
            let waiting = self.marks.iter_mut().rev().take_while(|other| other.batch_of.is_none());
            if let Some(other) = waiting.into_iter().find(|other| other.lane == mark.lane) {
                other.position = mark.position;
                return;
            }
        }
        self.marks.push_back(mark);
        // Beyond these there are at most the places of removed rows in front of one batch.
        if self.marks.len() > KEPT_BATCHES {
            self.forget_a_batch();
        }
    }

    /// The oldest batch becomes part of the base, with the removed rows in front of it.
    fn forget_a_batch(&mut self) {
        if self.marks.iter().all(|mark| mark.batch_of.is_none()) {
            return;
        }
        while let Some(mark) = self.marks.pop_front() {
            self.base.positions[mark.lane as usize] = mark.position;
            if let Some(epoch) = mark.batch_of {
                self.base.count = self.base.count.and_one(epoch);
                return;
            }
        }
    }

    /// Where the consumer stood at a step: right behind the last batch that is part of it.
    pub fn find(&self, step: StepId) -> StepLookup {
        let wanted = step.batches(self.began.len());
        let epoch = step.epochs.map(|epochs| first_epoch(&self.began).saturating_add(epochs));
        let is_part = |at: BatchCount| match epoch {
            None => at.batches <= wanted,
            Some(epoch) => at.epoch < epoch || (at.epoch == epoch && at.of_epoch <= wanted),
        };
        let mut at = self.base.count;
        if at.batches > 0 && !is_part(at) {
            return StepLookup::Gone;
        }
        let mut parts = 0;
        for (place, mark) in self.marks.iter().enumerate() {
            let Some(batch_of) = mark.batch_of else { continue };
            let next = at.and_one(batch_of);
            if !is_part(next) {
                return self.found(step, at, parts);
            }
            (at, parts) = (next, place + 1);
        }
        if self.is_over || self.is_last(at, epoch, wanted) {
            self.found(step, at, parts)
        } else {
            StepLookup::Ahead
        }
    }

    /// Behind so many marks lies the step's last batch, with this count.
    fn found(&self, step: StepId, at: BatchCount, marks: usize) -> StepLookup {
        let is_had = at.batches <= self.batches().saturating_sub(self.foreseen);
        if step.is_end() && !is_had { StepLookup::Ahead } else { StepLookup::At(self.behind(marks)) }
    }

    /// Whether whatever follows the last mark is no part of a step.
    fn is_last(&self, at: BatchCount, epoch: Option<u32>, wanted: u64) -> bool {
        let Some(epoch) = epoch else { return at.batches == wanted };
        if at.epoch == epoch && at.of_epoch == wanted {
            return true;
        }
        let behind = self.behind(self.marks.len());
        let earliest = behind.iter().map(|(_, position)| position.epoch).min().unwrap_or(0);
        earliest > epoch || (wanted == 0 && earliest == epoch)
    }

    /// Where the streams stand behind so many marks.
    fn behind(&self, marks: usize) -> Vec<(u32, StreamPosition)> {
        let streams = self.began.iter().map(|(stream, _)| *stream);
        let mut stands: Vec<_> = streams.zip(self.base.positions.iter().copied()).collect();
        for mark in self.marks.iter().take(marks) {
            stands[mark.lane as usize].1 = mark.position;
        }
        stands
    }
}

fn first_epoch(began: &[(u32, StreamPosition)]) -> u32 {
    began.iter().map(|(_, position)| position.epoch).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
