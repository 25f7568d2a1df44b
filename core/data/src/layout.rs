//! How an epoch's row sequence is cut: into streams for the virtual consumers, splits, groups and batches. Pure
//! arithmetic on the dataset's size and the job's settings; workers, consumers and failures do not enter.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::manifest::DatasetSummary;
use crate::mix::MixChange;
use crate::pipeline::{OperatorKind, OrderMode, Pipeline, Remainder};

/// Rows of a split where nothing speaks for more or fewer: a lease should outlast a few control round trips.
const SPLIT_ROWS: u64 = 1024;
/// A split's encoded rows stay below this, so that what is lost with a worker is small.
const SPLIT_BYTES: u64 = 64 << 20;
/// A stream has at least this many splits where the dataset allows, so that every worker finds work.
const SPLITS_PER_STREAM: u64 = 8;
/// More splits than this per epoch cost the coordinator more than they help.
const MAX_SPLITS: u64 = 1 << 16;
/// Small rows are processed and sent in groups of several batches of about this many encoded bytes.
const GROUP_BYTES: u64 = 256 << 10;
const MAX_BATCHES_PER_GROUP: u64 = 64;
/// A round of a coordinated job has about so many steps of its largest batches, so that few of them are smaller for want of
/// rows at its end; and at least so many where the dataset is small.
const STEPS_PER_ROUND: u64 = 16;
const FEWEST_STEPS: u64 = 4;
/// Rows that are taken to go into a packed one, where a round's size is chosen.
const ROWS_PER_PACKED: u64 = 8;

/// A split: `ordinal` counts the splits of one stream in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SplitRef {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Place in its stream.
    pub ordinal: u64,
    /// Stream: the virtual consumer in deterministic mode, 0 in relaxed mode.
    pub stream: u32,
}

/// Where a stream stands: the next row that has not been delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Rows of this stream's epoch that lie before the position, filtered and skipped rows included. In a coordinated job
    /// all streams go through all rows together: rows of the epoch that the steps before it have for all streams.
    pub row: u64,
}

/// The cuts of every epoch of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Rows of one pass over the dataset; of a mix they may be fewer or more than it has.
    pub dataset_rows: u64,
    /// Passes over the dataset in an epoch.
    pub passes: u32,
    /// Epochs of the job.
    pub epochs: u32,
    /// Streams: virtual consumers in deterministic mode, 1 in relaxed mode.
    pub streams: u32,
    /// Rows of a batch.
    pub batch_rows: u32,
    /// What happens to an epoch's last rows.
    pub remainder: Remainder,
    /// Whether operators or `on_error: skip` can change the number of rows.
    pub changes_rows: bool,
    /// Rows of a split; the last splits of an epoch may be shorter. A multiple of `batch_rows`.
    pub split_rows: u64,
    /// Rows processed and sent together, at most. A multiple of `batch_rows` that divides no split unevenly but its end.
    pub group_rows: u32,
    /// Whether all streams go through the same rounds: a split is one stream's part of a round of `split_rows` rows, and its
    /// offsets count the rows that the round's steps have for all streams. Rows become batches by what is in them.
    #[serde(default)]
    pub coordinated: bool,
    /// How the weights of a mix have changed since the job began, in order. They cut nothing, and lie here since all who compute rows have a
    /// layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mix: Vec<MixChange>,
}

impl Layout {
    /// The layout of a job: depends on the dataset, the pipeline, the epochs and the virtual consumers only.
    pub fn new(pipeline: &Pipeline, dataset: &DatasetSummary, epochs: u32, virtual_consumers: u32) -> Self {
        if pipeline.is_coordinated() {
            return Self::coordinated(pipeline, dataset, epochs, virtual_consumers);
        }
        let batch = u64::from(pipeline.batch_size());
        let passes = pipeline.repeat_count();
        let rows = pipeline.pass_rows(dataset).saturating_mul(u64::from(passes));
        let streams = match pipeline.order {
            OrderMode::Deterministic => virtual_consumers,
            OrderMode::Relaxed => 1,
        };
        let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
        let wanted = SPLIT_ROWS.max(pipeline.shuffle.window).max(rows / MAX_SPLITS);
        let limit = (SPLIT_BYTES / mean_row_bytes).min(rows / (SPLITS_PER_STREAM * u64::from(streams)));
        let split_rows = wanted.min(limit.max(1)).next_multiple_of(batch);
        let batches_per_group =
            (GROUP_BYTES / batch.saturating_mul(mean_row_bytes)).clamp(1, MAX_BATCHES_PER_GROUP);
        Self {
            dataset_rows: pipeline.pass_rows(dataset),
            passes,
            epochs,
            streams,
            batch_rows: pipeline.batch_size(),
            remainder: pipeline.remainder(),
            changes_rows: pipeline.changes_rows(),
            split_rows,
            group_rows: (batch * batches_per_group).min(split_rows) as u32,
            coordinated: false,
            mix: Vec::new(),
        }
    }

    /// The layout of a job whose batches are made for all streams together: rounds are computed whole.
    fn coordinated(pipeline: &Pipeline, dataset: &DatasetSummary, epochs: u32, streams: u32) -> Self {
        let passes = pipeline.repeat_count();
        let rows = pipeline.pass_rows(dataset).saturating_mul(u64::from(passes));
        let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
        let step = u64::from(streams) * largest_batch(pipeline);
        let chosen = || {
            let wanted = SPLIT_ROWS.max(STEPS_PER_ROUND.saturating_mul(step)).max(rows / MAX_SPLITS);
            wanted.min((rows / SPLITS_PER_STREAM).max(FEWEST_STEPS.saturating_mul(step)))
        };
        let wanted = round_window(pipeline).unwrap_or_else(chosen);
        let most = (SPLIT_BYTES / mean_row_bytes).min(u64::from(u32::MAX >> 1)).min(rows.max(1));
        let round_rows = wanted.min(most.max(1));
        Self {
            dataset_rows: pipeline.pass_rows(dataset),
            passes,
            epochs,
            streams,
            batch_rows: round_rows as u32,
            remainder: Remainder::Emit,
            changes_rows: true,
            split_rows: round_rows,
            group_rows: round_rows as u32,
            coordinated: true,
            mix: Vec::new(),
        }
    }

    /// The pass, over all epochs, and the place in it at which the rows behind this round of an epoch begin: round `ordinal` is the
    /// `ordinal`-th split of every stream. `None` where the job has no rows behind it.
    pub fn place_behind(&self, epoch: u32, ordinal: u64) -> Option<(u32, u64)> {
        let next = ordinal + 1;
        if next < self.full_rounds() {
            let streams = if self.coordinated { 1 } else { u64::from(self.streams) };
            let place = next * self.split_rows * streams;
            return Some((
                epoch * self.passes + (place / self.dataset_rows) as u32,
                place % self.dataset_rows,
            ));
        }
        (epoch + 1 < self.epochs).then(|| ((epoch + 1) * self.passes, 0))
    }

    /// Of the changes of a mix those that tell what comes from `epoch` on.
    pub fn mix_from(&self, epoch: u32) -> &[MixChange] {
        MixChange::from_pass(&self.mix, epoch.saturating_mul(self.passes))
    }

    /// Rows of one epoch before operators. No job starts whose epochs have more than can be counted.
    pub fn epoch_rows(&self) -> u64 {
        self.dataset_rows.saturating_mul(u64::from(self.passes))
    }

    /// Rounds of full splits, one for each stream, that open an epoch.
    fn full_rounds(&self) -> u64 {
        if self.coordinated {
            return self.epoch_rows() / self.split_rows;
        }
        self.epoch_rows() / (self.split_rows * u64::from(self.streams))
    }

    /// What follows the full rounds: (full batches of every stream, rows left for one last, shared step).
    fn tail(&self) -> (u64, u64) {
        let streams = u64::from(self.streams);
        let tail = self.epoch_rows() % (self.split_rows * streams);
        let step = streams * u64::from(self.batch_rows);
        let last = if self.drops_in_layout() { 0 } else { tail % step };
        (tail / step, last)
    }

    /// Whether the rows that `remainder: drop` leaves out are known before any row is read.
    fn drops_in_layout(&self) -> bool {
        self.remainder == Remainder::Drop && !self.changes_rows
    }

    /// Rows that the layout leaves out of every epoch.
    pub fn dropped_rows(&self) -> u64 {
        if self.coordinated {
            return 0;
        }
        self.epoch_rows() - (0..self.streams).map(|stream| self.stream_rows(stream)).sum::<u64>()
    }

    /// Rows of the stream's last, shorter split; 0 where there is none.
    fn tail_rows(&self, stream: u32) -> u64 {
        if self.coordinated {
            return self.epoch_rows() % self.split_rows;
        }
        let (steps, last) = self.tail();
        let streams = u64::from(self.streams);
        steps * u64::from(self.batch_rows) + last / streams + u64::from(u64::from(stream) < last % streams)
    }

    /// Rows of a stream in one epoch, before operators.
    pub fn stream_rows(&self, stream: u32) -> u64 {
        self.full_rounds() * self.split_rows + self.tail_rows(stream)
    }

    /// Splits of a stream in one epoch.
    pub fn splits(&self, stream: u32) -> u64 {
        self.full_rounds() + u64::from(self.tail_rows(stream) > 0)
    }

    /// Batches of every stream in one epoch, where operators keep the number of rows: the same for all streams.
    /// `None` where it cannot be known in advance, or where `carry` moves rows between epochs.
    pub fn steps(&self) -> Option<u64> {
        if self.changes_rows || self.remainder == Remainder::Carry {
            return None;
        }
        let (steps, last) = self.tail();
        Some(
            self.full_rounds() * (self.split_rows / u64::from(self.batch_rows)) + steps + u64::from(last > 0),
        )
    }

    /// The step that a batch beginning at this position of a stream belongs to; behind the epoch's rows it is the last one. `None` where
    /// steps cannot be known in advance.
    pub fn step_of(&self, position: StreamPosition) -> Option<u64> {
        let steps = self.steps()?;
        Some((position.row / u64::from(self.batch_rows)).min(steps.saturating_sub(1)))
    }

    /// Rows of all streams in one step, where operators keep the number of rows.
    pub fn step_rows(&self, step: u64) -> u64 {
        let (steps, last) = self.tail();
        let full = self.full_rounds() * (self.split_rows / u64::from(self.batch_rows)) + steps;
        if step < full { u64::from(self.streams) * u64::from(self.batch_rows) } else { last }
    }

    /// The rows of a split, as places in the epoch's row sequence; those of its round where streams share rounds.
    pub fn split_range(&self, split: SplitRef) -> Range<u64> {
        if self.coordinated {
            let start = split.ordinal * self.split_rows;
            return start..(start + self.split_rows).min(self.epoch_rows());
        }
        let streams = u64::from(self.streams);
        let stream = u64::from(split.stream);
        let full = self.full_rounds();
        if split.ordinal < full {
            let start = (split.ordinal * streams + stream) * self.split_rows;
            return start..start + self.split_rows;
        }
        let (steps, last) = self.tail();
        let start = full * streams * self.split_rows
            + stream * (steps * u64::from(self.batch_rows) + last / streams)
            + stream.min(last % streams);
        start..start + self.tail_rows(split.stream)
    }

    /// Rows of a split.
    pub fn split_len(&self, split: SplitRef) -> u32 {
        let range = self.split_range(split);
        (range.end - range.start) as u32
    }

    /// Whether the last step of an epoch has no rows for this stream, because other streams get the last rows.
    fn has_empty_step(&self, stream: u32) -> bool {
        let batches = self.stream_rows(stream).div_ceil(u64::from(self.batch_rows));
        batches > 0 && self.steps().is_some_and(|steps| batches < steps)
    }

    /// Whether a position lies between an epoch's last row and its last step, which has no rows. Such a position is
    /// written as the row after the epoch's last.
    pub fn owes_empty_step(&self, stream: u32, position: StreamPosition) -> bool {
        position.epoch < self.epochs
            && position.row == self.stream_rows(stream)
            && self.has_empty_step(stream)
    }

    /// The split that holds the next row from a position on, and its offset there; `None` where no row is left.
    pub fn locate(&self, stream: u32, position: StreamPosition) -> Option<(SplitRef, u32)> {
        let position = self.next_row(stream, position);
        if position.epoch >= self.epochs {
            return None;
        }
        let ordinal = position.row / self.split_rows;
        let split = SplitRef { epoch: position.epoch, ordinal, stream };
        Some((split, (position.row - ordinal * self.split_rows) as u32))
    }

    /// The position `offset` rows into a split.
    pub fn position_in(&self, split: SplitRef, offset: u32) -> StreamPosition {
        let row = split.ordinal * self.split_rows + u64::from(offset);
        self.next_row(split.stream, StreamPosition { epoch: split.epoch, row })
    }

    /// Moves a position at the end of an epoch to the start of the next one, unless a step without rows is owed there.
    pub fn normalise(&self, stream: u32, position: StreamPosition) -> StreamPosition {
        if self.owes_empty_step(stream, position) { position } else { self.next_row(stream, position) }
    }

    /// Moves a position at the end of an epoch to the start of the next one.
    fn next_row(&self, stream: u32, position: StreamPosition) -> StreamPosition {
        if position.epoch >= self.epochs || self.stream_rows(stream) == 0 {
            return StreamPosition { epoch: self.epochs, row: 0 };
        }
        if position.row >= self.stream_rows(stream) {
            return StreamPosition { epoch: position.epoch + 1, row: 0 };
        }
        position
    }

    /// Whether a stream has delivered everything at this position.
    pub fn is_end(&self, stream: u32, position: StreamPosition) -> bool {
        self.normalise(stream, position).epoch >= self.epochs
    }

    /// The split after this one in its stream; `None` after the last of the job.
    pub fn next_split(&self, split: SplitRef) -> Option<SplitRef> {
        if split.ordinal + 1 < self.splits(split.stream) {
            return Some(SplitRef { ordinal: split.ordinal + 1, ..split });
        }
        (split.epoch + 1 < self.epochs).then_some(SplitRef {
            epoch: split.epoch + 1,
            ordinal: 0,
            stream: split.stream,
        })
    }

    /// Splits of the whole job; `None` where there are more than can be counted.
    pub fn total_splits(&self) -> Option<u64> {
        let splits = (0..self.streams).try_fold(0_u64, |sum, stream| sum.checked_add(self.splits(stream)))?;
        splits.checked_mul(u64::from(self.epochs))
    }
}

/// Rows of the largest batch of a coordinated pipeline, before they are packed.
fn largest_batch(pipeline: &Pipeline) -> u64 {
    let packs = pipeline.operators.iter().any(|operator| matches!(operator.kind, OperatorKind::Pack(_)));
    u64::from(pipeline.batch_size()) * if packs { ROWS_PER_PACKED } else { 1 }
}

/// Rows of a round, where the pipeline says so.
fn round_window(pipeline: &Pipeline) -> Option<u64> {
    pipeline.operators.iter().find_map(|operator| match &operator.kind {
        OperatorKind::BucketByLength(bucket) => bucket.window,
        OperatorKind::Pack(pack) => pack.window,
        _ => None,
    })
}

#[cfg(test)]
mod tests;
