//! The layout of an epoch: the division of its row sequence into streams, splits, groups and batches. The layout is a pure
//! function of the dataset's size and the job's settings. Workers, consumers and failures do not affect it.

mod compressed;
mod delivered;
mod indivisible;
mod resumed;
mod unbounded;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::manifest::DatasetSummary;
use crate::mix::MixChange;
use crate::pipeline::{OperatorKind, OrderMode, Pipeline, Remainder};
use crate::runs::{RunLayout, SplitLimits};

pub use self::delivered::DeliveredPrefix;

/// Default number of rows per split. Computing a split should take longer than several round trips of control messages.
const DEFAULT_SPLIT_ROWS: u64 = 1024;
/// Maximum encoded size of a split, which limits the work lost when a worker fails.
const MAX_SPLIT_BYTES: u64 = 64 << 20;
/// Minimum number of splits per stream if the dataset is large enough, so that every worker gets a share.
const MIN_SPLITS_PER_STREAM: u64 = 8;
/// Maximum number of splits per epoch, which limits the state of the coordinator.
const MAX_SPLITS: u64 = 1 << 16;
/// Target size of a group in encoded bytes. Batches of small rows are computed and sent in groups of about this size.
const TARGET_GROUP_BYTES: u64 = 256 << 10;
/// Minimum size of a split of topics in bytes, if they have enough records. Records need little CPU time, so smaller splits would
/// cost more in control messages, and workers that read one partition would seek more often.
const MIN_TOPIC_SPLIT_BYTES: u64 = 8 << 20;
/// Target size of a group of records of topics in bytes, about a block of a partition. Records need little CPU time, so that smaller
/// groups would cost more than their records.
const TARGET_TOPIC_GROUP_BYTES: u64 = 1 << 20;
const MAX_BATCHES_PER_GROUP: u64 = 64;
/// Number of steps in a round of a coordinated job, for batches of the maximum size. Only the last steps of a round have
/// smaller batches, so longer rounds have proportionally fewer small batches.
const STEPS_PER_ROUND: u64 = 16;
/// Minimum number of steps in a round, for small datasets.
const MIN_STEPS_PER_ROUND: u64 = 4;
/// Assumed number of rows in a packed row, used to choose the size of a round.
const ROWS_PER_PACKED_ROW: u64 = 8;

/// Identifies a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SplitRef {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The index of the split among the splits of its stream in the epoch.
    pub ordinal: u64,
    /// The stream: the virtual consumer in deterministic mode, 0 in relaxed mode.
    pub stream: u32,
}

/// The position of a stream: its next undelivered row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamPosition {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The number of rows of the stream in this epoch before the position, including filtered and skipped rows. In a
    /// coordinated job, the number of rows of all streams in the steps before the position.
    pub row: u64,
}

/// The division of every epoch of a job into streams, splits, groups and batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The number of rows of one pass over the dataset. For a mix it may differ from the number of rows in its datasets.
    pub dataset_rows: u64,
    /// The number of passes over the dataset in an epoch.
    pub passes: u32,
    /// The number of epochs of the job.
    pub epochs: u32,
    /// The number of streams: the virtual consumers in deterministic mode, 1 in relaxed mode.
    pub streams: u32,
    /// The number of rows of a batch.
    pub batch_rows: u32,
    /// What happens to the rows of an epoch that do not fill a batch.
    pub remainder: Remainder,
    /// Whether operators or `on_error: skip` can change the number of rows.
    pub changes_rows: bool,
    /// The number of rows of a split, a multiple of `batch_rows`. The last splits of an epoch may be shorter.
    pub split_rows: u64,
    /// Maximum number of rows of a group, a multiple of `batch_rows`. Only the last group of a split may be shorter.
    pub group_rows: u32,
    /// Whether all streams share rounds. A split is then one stream's part of a round of `split_rows` rows, and an offset in
    /// a split counts the rows of all streams.
    #[serde(default)]
    pub coordinated: bool,
    /// How splits are divided among lanes of long runs.
    #[serde(default, skip_serializing_if = "RunLayout::is_empty")]
    pub runs: RunLayout,
    /// The mix weight changes since the start of the job, in order. The changes do not affect the layout. They are stored
    /// here because every component that computes rows has the layout.
    #[serde(rename = "mix", default, skip_serializing_if = "Vec::is_empty")]
    pub mix_changes: Vec<MixChange>,
    /// Whether the job has no end. Its rows are those of the recorded segments ([`crate::segments`]), followed by rows that are
    /// not recorded yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
    /// Whether a batch is one record that cannot be divided or joined, such as a sampled graph. A group is then the input rows of
    /// one batch, and rows that operators remove make a batch smaller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indivisible: bool,
}

impl Layout {
    /// Computes the layout of a job. The layout depends only on the arguments.
    pub fn new(pipeline: &Pipeline, dataset: &DatasetSummary, epochs: u32, virtual_consumers: u32) -> Self {
        if pipeline.is_coordinated() {
            return Self::coordinated(pipeline, dataset, epochs, virtual_consumers);
        }
        if pipeline.source.is_unbounded() {
            return Self::unbounded(pipeline, dataset, virtual_consumers);
        }
        if pipeline.is_indivisible() {
            return Self::indivisible(pipeline, dataset, epochs, virtual_consumers);
        }
        let batch = u64::from(pipeline.batch_size());
        let passes = pipeline.repeat_count();
        let rows = pipeline.pass_rows(dataset).saturating_mul(u64::from(passes));
        let streams = stream_count(pipeline, virtual_consumers);
        let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
        let mut wanted = DEFAULT_SPLIT_ROWS.max(pipeline.shuffle.window).max(rows / MAX_SPLITS);
        let most_rows = rows / (MIN_SPLITS_PER_STREAM * u64::from(streams));
        let mut limit = most_rows.min(MAX_SPLIT_BYTES / mean_row_bytes);
        if pipeline.source.has_topics() {
            wanted = wanted.max(MIN_TOPIC_SPLIT_BYTES / mean_row_bytes);
        }
        let mut unit = batch;
        if dataset.is_compressed {
            let min_bytes = compressed::min_split_bytes(dataset);
            wanted = wanted.max(min_bytes / mean_row_bytes);
            limit = most_rows.min(MAX_SPLIT_BYTES.max(min_bytes) / mean_row_bytes);
            unit = compressed::rows_of_windows(pipeline, dataset, streams);
        }
        let limits = SplitLimits { wanted: wanted.min(limit), min: rows / MAX_SPLITS, unit };
        let (runs, split_rows) = compressed::run_layout(pipeline, dataset, streams, limits);
        let split_rows = split_rows.next_multiple_of(batch);
        let group_rows = group_rows(pipeline, mean_row_bytes, split_rows);
        Self { runs, ..Self::with_splits(pipeline, dataset, epochs, streams, split_rows, group_rows) }
    }

    /// Builds the layout of a job whose streams have their own rounds, with splits and groups of these lengths.
    fn with_splits(
        pipeline: &Pipeline,
        dataset: &DatasetSummary,
        epochs: u32,
        streams: u32,
        split_rows: u64,
        group_rows: u32,
    ) -> Self {
        Self {
            dataset_rows: pipeline.pass_rows(dataset),
            passes: pipeline.repeat_count(),
            epochs,
            streams,
            batch_rows: pipeline.batch_size(),
            remainder: pipeline.remainder(),
            changes_rows: pipeline.changes_rows(),
            split_rows,
            group_rows,
            coordinated: false,
            runs: RunLayout::default(),
            mix_changes: Vec::new(),
            unbounded: false,
            indivisible: false,
        }
    }

    /// Computes the layout of a coordinated job, which forms the batches of all streams together from whole rounds.
    fn coordinated(pipeline: &Pipeline, dataset: &DatasetSummary, epochs: u32, streams: u32) -> Self {
        let passes = pipeline.repeat_count();
        let rows = pipeline.pass_rows(dataset).saturating_mul(u64::from(passes));
        let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
        let step = u64::from(streams) * largest_batch(pipeline);
        let default_window = || {
            let mut wanted =
                DEFAULT_SPLIT_ROWS.max(STEPS_PER_ROUND.saturating_mul(step)).max(rows / MAX_SPLITS);
            if dataset.is_compressed {
                let min_rows = compressed::min_split_bytes(dataset) / mean_row_bytes;
                wanted = wanted.max(pipeline.shuffle.window).max(min_rows);
            }
            wanted.min((rows / MIN_SPLITS_PER_STREAM).max(MIN_STEPS_PER_ROUND.saturating_mul(step)))
        };
        let wanted = round_window(pipeline).unwrap_or_else(default_window);
        let limit = (MAX_SPLIT_BYTES / mean_row_bytes).min(u64::from(u32::MAX >> 1)).min(rows.max(1));
        let wanted = wanted.min(limit.max(1));
        let least = round_window(pipeline).unwrap_or(MIN_STEPS_PER_ROUND.saturating_mul(step)).min(wanted);
        let unit =
            if round_window(pipeline).is_some() { 1 } else { pipeline.shuffle.window.clamp(1, wanted) };
        let limits = SplitLimits { wanted, min: least, unit };
        let (runs, round_rows) = match dataset.runs.is_empty() {
            true => (RunLayout::default(), wanted),
            false => compressed::run_layout(pipeline, dataset, 1, limits),
        };
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
            runs,
            mix_changes: Vec::new(),
            unbounded: false,
            indivisible: false,
        }
    }

    /// Returns the first row after round `ordinal` of an epoch: the pass, counted over all epochs, and the offset in the
    /// pass. The round consists of the splits with this ordinal in all streams. Returns `None` after the last round of the
    /// job.
    pub fn start_after_round(&self, epoch: u32, ordinal: u64) -> Option<(u32, u64)> {
        let next = ordinal + 1;
        if next < self.full_rounds() {
            let streams = if self.coordinated { 1 } else { u64::from(self.streams) };
            let row = next * self.split_rows * streams;
            return Some((epoch * self.passes + (row / self.dataset_rows) as u32, row % self.dataset_rows));
        }
        (epoch + 1 < self.epochs).then(|| ((epoch + 1) * self.passes, 0))
    }

    /// Returns the mix weight changes that affect rows of `epoch` or later epochs.
    pub fn mix_changes_from(&self, epoch: u32) -> &[MixChange] {
        MixChange::changes_from_pass(&self.mix_changes, epoch.saturating_mul(self.passes))
    }

    /// The number of input rows of one epoch. A job with more than [`u64::MAX`] rows per epoch is rejected.
    pub fn epoch_rows(&self) -> u64 {
        self.dataset_rows.saturating_mul(u64::from(self.passes))
    }

    /// The number of rounds of full splits at the start of an epoch. A round has one split per stream.
    fn full_rounds(&self) -> u64 {
        if self.coordinated {
            return self.epoch_rows() / self.split_rows;
        }
        self.epoch_rows() / (self.split_rows * u64::from(self.streams))
    }

    /// The number of rows in full splits at the start of an epoch.
    pub(crate) fn full_split_rows(&self) -> u64 {
        let streams = if self.coordinated { 1 } else { u64::from(self.streams) };
        self.full_rounds() * streams * self.split_rows
    }

    /// Returns the key of the worker that should compute a split: splits with the same key have rows of the same long runs.
    /// `None` if any worker can compute the split.
    pub fn run_key(&self, dataset: &DatasetSummary, split: SplitRef) -> Option<u64> {
        if self.runs.is_empty() {
            return None;
        }
        let start = self.split_range(split).start;
        if self.runs.is_sequential {
            let group = (start / self.split_rows).checked_div(self.runs.group_splits);
            return group.or_else(|| dataset.runs.group_of(start % self.dataset_rows.max(1)));
        }
        let is_full = start < self.full_split_rows();
        self.runs.lane_of(start / self.split_rows).filter(|_| is_full).map(u64::from)
    }

    /// Whether a pass has too many splits to keep each shuffle window of compressed rows in one split. Long runs then have no lanes.
    pub fn has_undivided_windows(&self) -> bool {
        compressed::has_too_many_splits(self.dataset_rows, self.split_rows)
    }

    /// Returns how the rows after the full rounds are divided: the number of full batches per stream, and the number of rows
    /// of all streams in one last, smaller step.
    fn tail(&self) -> (u64, u64) {
        let streams = u64::from(self.streams);
        let tail = self.epoch_rows() % (self.split_rows * streams);
        let step = streams * u64::from(self.batch_rows);
        let last = if self.drops_in_layout() { 0 } else { tail % step };
        (tail / step, last)
    }

    /// Whether the layout alone determines the rows that `remainder: drop` drops.
    fn drops_in_layout(&self) -> bool {
        self.remainder == Remainder::Drop && self.has_fixed_batches()
    }

    /// Whether the layout alone determines the input rows of each batch.
    fn has_fixed_batches(&self) -> bool {
        self.indivisible || !self.changes_rows
    }

    /// The number of rows that the layout drops in each epoch.
    pub fn dropped_rows(&self) -> u64 {
        if self.coordinated {
            return 0;
        }
        self.epoch_rows() - (0..self.streams).map(|stream| self.stream_rows(stream)).sum::<u64>()
    }

    /// The number of rows of the stream's shorter last split; 0 if every split has the full length.
    fn tail_rows(&self, stream: u32) -> u64 {
        if self.coordinated {
            return self.epoch_rows() % self.split_rows;
        }
        let (steps, last) = self.tail();
        let streams = u64::from(self.streams);
        steps * u64::from(self.batch_rows) + last / streams + u64::from(u64::from(stream) < last % streams)
    }

    /// The number of input rows of a stream in one epoch.
    pub fn stream_rows(&self, stream: u32) -> u64 {
        self.full_rounds() * self.split_rows + self.tail_rows(stream)
    }

    /// The number of splits of a stream in one epoch.
    pub fn splits(&self, stream: u32) -> u64 {
        self.full_rounds() + u64::from(self.tail_rows(stream) > 0)
    }

    /// Returns the number of batches of each stream in one epoch, or `None` if operators change the number of rows of divisible
    /// batches or `remainder: carry` moves rows to the next epoch.
    pub fn steps(&self) -> Option<u64> {
        if !self.has_fixed_batches() || self.remainder == Remainder::Carry {
            return None;
        }
        let (steps, last) = self.tail();
        Some(
            self.full_rounds() * (self.split_rows / u64::from(self.batch_rows)) + steps + u64::from(last > 0),
        )
    }

    /// Returns the step of the batch that starts at a position of a stream. A position after the epoch's rows belongs to the
    /// last step. Returns `None` if [`steps`](Self::steps) does.
    pub fn step_of(&self, position: StreamPosition) -> Option<u64> {
        let steps = self.steps()?;
        Some((position.row / u64::from(self.batch_rows)).min(steps.saturating_sub(1)))
    }

    /// The number of rows of a full step: a batch of each stream.
    pub fn full_step_rows(&self) -> u64 {
        u64::from(self.streams) * u64::from(self.batch_rows)
    }

    /// The number of input rows of all streams in one step, if [`steps`](Self::steps) is known.
    pub fn step_rows(&self, step: u64) -> u64 {
        let (steps, last) = self.tail();
        let full = self.full_rounds() * (self.split_rows / u64::from(self.batch_rows)) + steps;
        if step < full { self.full_step_rows() } else { last }
    }

    /// Returns the rows of a split as offsets in the epoch's row sequence. In a coordinated job these are the rows of the
    /// round.
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

    /// The number of rows of a split.
    pub fn split_len(&self, split: SplitRef) -> u32 {
        let range = self.split_range(split);
        (range.end - range.start) as u32
    }

    /// Whether a stream has no rows in the last step of an epoch, because the last step has fewer rows than streams.
    fn has_empty_step(&self, stream: u32) -> bool {
        let batches = self.stream_rows(stream).div_ceil(u64::from(self.batch_rows));
        batches > 0 && self.steps().is_some_and(|steps| batches < steps)
    }

    /// Whether a position is after the stream's last row of the epoch but before the epoch's last step, in which the stream
    /// has no rows. The `row` of such a position is the number of rows of the stream.
    pub fn has_pending_empty_step(&self, stream: u32, position: StreamPosition) -> bool {
        position.epoch < self.epochs
            && position.row == self.stream_rows(stream)
            && self.has_empty_step(stream)
    }

    /// Returns the split that contains the next row at a position, and the row's offset in the split. Returns `None` after
    /// the last row.
    pub fn locate(&self, stream: u32, position: StreamPosition) -> Option<(SplitRef, u32)> {
        let position = self.next_row(stream, position);
        if position.epoch >= self.epochs {
            return None;
        }
        let ordinal = position.row / self.split_rows;
        let split = SplitRef { epoch: position.epoch, ordinal, stream };
        Some((split, (position.row - ordinal * self.split_rows) as u32))
    }

    /// Returns the position of the row at `offset` in a split.
    pub fn position_in(&self, split: SplitRef, offset: u32) -> StreamPosition {
        let row = split.ordinal * self.split_rows + u64::from(offset);
        self.next_row(split.stream, StreamPosition { epoch: split.epoch, row })
    }

    /// Moves a position at the end of an epoch to the start of the next epoch, unless the stream has a pending empty step.
    pub fn normalise(&self, stream: u32, position: StreamPosition) -> StreamPosition {
        if self.has_pending_empty_step(stream, position) { position } else { self.next_row(stream, position) }
    }

    /// Moves a position at the end of an epoch to the start of the next epoch.
    fn next_row(&self, stream: u32, position: StreamPosition) -> StreamPosition {
        if position.epoch >= self.epochs || self.stream_rows(stream) == 0 {
            return StreamPosition { epoch: self.epochs, row: 0 };
        }
        if position.row >= self.stream_rows(stream) {
            return StreamPosition { epoch: position.epoch + 1, row: 0 };
        }
        position
    }

    /// Whether a stream has no batches left at this position.
    pub fn is_end(&self, stream: u32, position: StreamPosition) -> bool {
        self.normalise(stream, position).epoch >= self.epochs
    }

    /// Returns the next split of the same stream, or `None` after the last split of the job.
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

    /// The number of splits of the whole job; `None` if it exceeds [`u64::MAX`].
    pub fn total_splits(&self) -> Option<u64> {
        let splits = (0..self.streams).try_fold(0_u64, |sum, stream| sum.checked_add(self.splits(stream)))?;
        splits.checked_mul(u64::from(self.epochs))
    }
}

/// The number of rows of a group: whole batches of about the target size.
fn group_rows(pipeline: &Pipeline, mean_row_bytes: u64, split_rows: u64) -> u32 {
    let target = if pipeline.source.has_topics() { TARGET_TOPIC_GROUP_BYTES } else { TARGET_GROUP_BYTES };
    let batch = u64::from(pipeline.batch_size());
    let batches = (target / batch.saturating_mul(mean_row_bytes)).clamp(1, MAX_BATCHES_PER_GROUP);
    (batch * batches).min(split_rows) as u32
}

/// The number of streams of a job.
fn stream_count(pipeline: &Pipeline, virtual_consumers: u32) -> u32 {
    match pipeline.order {
        OrderMode::Deterministic => virtual_consumers,
        OrderMode::Relaxed => 1,
    }
}

/// The maximum number of input rows in a batch of a coordinated pipeline.
fn largest_batch(pipeline: &Pipeline) -> u64 {
    let packs = pipeline.operators.iter().any(|operator| matches!(operator.kind, OperatorKind::Pack(_)));
    u64::from(pipeline.batch_size()) * if packs { ROWS_PER_PACKED_ROW } else { 1 }
}

/// The number of rows of a round, if the pipeline sets a `window`.
fn round_window(pipeline: &Pipeline) -> Option<u64> {
    pipeline.operators.iter().find_map(|operator| match &operator.kind {
        OperatorKind::BucketByLength(bucket) => bucket.window,
        OperatorKind::Pack(pack) => pack.window,
        _ => None,
    })
}

#[cfg(test)]
mod tests;
