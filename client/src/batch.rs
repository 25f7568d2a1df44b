//! Batches, which are assembled from slices of pieces.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use feedline_data::consumer::{AssembledBatch, PieceSlice, RunKind};
use feedline_data::growth::Growth;
use feedline_data::layout::SplitRef;
use feedline_data::segments::PADDING_ROW_ID;
use feedline_proto::SkippedRow;

use crate::pieces::PieceBytes;

/// A batch of rows.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The rows, as a view of the receive buffer. If the batch spans several pieces, the rows are copied. An indivisible batch, such
    /// as a sampled graph, is one row of lists.
    pub records: RecordBatch,
    /// The origin of the rows.
    pub info: BatchInfo,
}

/// The origin of a batch's rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchInfo {
    /// The stream of the batch, which is the virtual consumer, or the slot of an elastic job. 0 in relaxed mode.
    pub stream: u32,
    /// Step within the epoch, from 0. Each stream delivers one batch in each step. `None` if operators may change the number of
    /// rows of divisible batches, with `remainder: carry`, and in relaxed mode.
    pub step: Option<u64>,
    /// The batch's share of the rows of all streams in this step. The weights of a step sum to 1, so the weighted mean over
    /// batches is the mean over the rows of the step. If `step` is `None`, the weight is the batch's share in a step with
    /// only full batches. If operators remove rows of indivisible batches, it is the share in the input rows of the step. In relaxed
    /// mode, the weight is 0.
    pub weight: f64,
    /// Epoch of the first row, from 0.
    pub epoch: u32,
    /// Number of rows. Of an indivisible batch, the number of rows that it was formed from, such as the seeds of a sampled graph.
    pub rows: u32,
    /// Whether the batch is indivisible. False for the empty batch of a stream without rows in the last step.
    pub is_indivisible: bool,
    /// The input rows of the batch, in order, as ranges of row offsets in each split. Includes the rows that operators
    /// have removed since the previous batch.
    pub inputs: Vec<(SplitRef, Range<u32>)>,
    /// The rows of the batch in order, as splits and row offsets. Empty if the batch contains all rows of `inputs`.
    pub kept: Vec<(SplitRef, Vec<u32>)>,
    /// The ids of the rows in `inputs`, in order. Empty unless the job was opened with `audit`. In a coordinated job, the
    /// list always contains the ids of the batch's rows. In the first stream's last batch of a round, it also contains the
    /// ids of the removed rows.
    pub row_ids: Vec<u64>,
    /// Failed rows that were skipped or replaced.
    pub skipped: Vec<SkippedRow>,
    /// Number of rows that `remainder: drop` has dropped since the previous batch.
    pub dropped_rows: u64,
    /// Unbounded jobs: the recorded segments from the position after this batch on. `None` if the job has an end.
    pub growth: Option<Arc<Growth>>,
}

impl BatchInfo {
    /// Adds the input rows of these parts.
    pub(crate) fn add_inputs(&mut self, parts: &[PieceSlice<PieceBytes>]) {
        for part in parts {
            self.add_input(part.split, part.input_range.clone());
            if let Some(ids) = &part.payload.row_ids {
                let index = |offset: u32| (offset - part.piece_start) as usize;
                let range = index(part.input_range.start)..index(part.input_range.end);
                // In a coordinated job, a piece has only the ids of this stream's rows.
                let ids = ids.get(range).unwrap_or(ids);
                self.row_ids.extend(ids.iter().copied().filter(|id| *id != PADDING_ROW_ID));
            }
            if is_last_part(part) {
                self.skipped.extend_from_slice(&part.payload.skipped);
            }
        }
    }

    /// Records the row offsets of the batch if operators removed some of its input rows.
    fn set_kept(&mut self, parts: &[PieceSlice<PieceBytes>]) {
        let input_rows: u64 = self.inputs.iter().map(|(_, input)| input.len() as u64).sum();
        if input_rows == u64::from(self.rows) {
            return;
        }
        for part in parts.iter().filter(|part| !part.rows.is_empty()) {
            let rows = part.rows.start as usize..part.rows.end as usize;
            let offsets = match &part.payload.kept {
                Some(kept) => kept[rows].to_vec(),
                None => (part.piece_start + part.rows.start..part.piece_start + part.rows.end).collect(),
            };
            self.kept.push((part.split, offsets));
        }
    }

    fn add_input(&mut self, split: SplitRef, input: Range<u32>) {
        match self.inputs.last_mut() {
            Some((last, range)) if *last == split && range.end == input.start => range.end = input.end,
            _ => self.inputs.push((split, input)),
        }
    }
}

/// Whether this part is the last part of its piece.
pub(crate) fn is_last_part(part: &PieceSlice<PieceBytes>) -> bool {
    part.rows.end == part.payload.rows
}

/// The step of a batch, and the batch's share of the step's rows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepShare {
    pub(crate) step: Option<u64>,
    pub(crate) weight: f64,
}

/// A batch whose slices are not joined yet.
#[derive(Debug)]
pub(crate) struct TakenBatch {
    pub(crate) info: BatchInfo,
    pub(crate) parts: Vec<PieceSlice<PieceBytes>>,
    /// The columns of a batch without rows.
    pub(crate) schema: Option<SchemaRef>,
}

impl TakenBatch {
    /// Combines a batch with `carried`, the preceding rows that are not part of any batch.
    pub(crate) fn new(
        stream: u32,
        StepShare { step, weight }: StepShare,
        assembled: AssembledBatch<PieceBytes>,
        carried: BatchInfo,
        schema: Option<SchemaRef>,
    ) -> Self {
        let AssembledBatch { epoch, rows, parts, .. } = assembled;
        let is_indivisible = parts.iter().any(|part| part.payload.is_indivisible);
        let mut info = BatchInfo { stream, step, weight, epoch, rows, is_indivisible, ..carried };
        info.add_inputs(&parts);
        info.set_kept(&parts);
        Self { info, parts, schema }
    }

    /// Joins the parts. Copies the rows only if there are several parts.
    ///
    /// # Errors
    /// Returns an error if the parts have different columns.
    pub(crate) fn join(self) -> Result<Batch, String> {
        let slice = |part: &PieceSlice<PieceBytes>| match part.payload.is_indivisible {
            true => part.payload.records.clone(),
            false => part.payload.records.slice(part.rows.start as usize, part.rows.len()),
        };
        let filled: Vec<&PieceSlice<PieceBytes>> =
            self.parts.iter().filter(|part| !part.rows.is_empty()).collect();
        let records = match filled.as_slice() {
            [] => {
                // The schema is unknown if a job resumes right before a step without rows.
                RecordBatch::new_empty(self.schema.unwrap_or_else(|| SchemaRef::new(Schema::empty())))
            }
            [part] => slice(part),
            parts => {
                let slices: Vec<RecordBatch> = parts.iter().map(|part| slice(part)).collect();
                concat_batches(&slices[0].schema(), &slices).map_err(|error| error.to_string())?
            }
        };
        Ok(Batch { records, info: self.info })
    }
}

/// Adds rows that are not part of any batch to `carried`, which the next batch includes.
pub(crate) fn add_carried(carried: &mut BatchInfo, assembled: &AssembledBatch<PieceBytes>) {
    if assembled.kind == RunKind::Dropped {
        carried.dropped_rows += u64::from(assembled.rows);
    }
    carried.add_inputs(&assembled.parts);
}
