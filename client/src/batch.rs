//! A batch as a consumer gets it, and how it is joined from parts of pieces.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use feedline_data::consumer::{AssembledBatch, PieceSlice, RunKind};
use feedline_data::layout::SplitRef;
use feedline_proto::SkippedRow;

use crate::pieces::PieceBytes;

/// A batch.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its rows. Views of the buffers they were received in, unless the batch was joined from several pieces.
    pub records: RecordBatch,
    /// What it is made of.
    pub info: BatchInfo,
}

/// What a batch is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchInfo {
    /// Stream: the virtual consumer in deterministic mode, the slot of an elastic job; 0 in relaxed mode.
    pub stream: u32,
    /// Step within the epoch, from 0: each stream has one batch in each. `None` where operators may change the number of rows,
    /// with `remainder: carry`, and in relaxed mode.
    pub step: Option<u64>,
    /// Its part of its step: its rows by those of all streams in this step, so that a step's batches together have weight 1,
    /// and means over batches weighed by it are means over the step's rows. Where `step` is not known, its rows by those that a
    /// full step has. 0 in relaxed mode.
    pub weight: f64,
    /// Epoch of its first row, from 0.
    pub epoch: u32,
    /// Rows.
    pub rows: u32,
    /// Input rows accounted for: ranges of offsets in splits, in order. Rows that operators removed are included,
    /// and so are whole runs of them that came before.
    pub inputs: Vec<(SplitRef, Range<u32>)>,
    /// Offsets in splits of the rows that it holds, in order, where operators removed some of `inputs`; else empty.
    pub kept: Vec<(SplitRef, Vec<u32>)>,
    /// Audit: ids of the rows of `inputs`, in order. Empty unless the job was opened with `audit`. In a coordinated job they
    /// are always there: ids of the rows that this batch holds, and in the last step of a round, for the first stream, of
    /// those that operators removed from it.
    pub row_ids: Vec<u64>,
    /// Rows that failed and were skipped or replaced.
    pub skipped: Vec<SkippedRow>,
    /// Rows that `remainder: drop` left out before this batch.
    pub dropped_rows: u64,
}

impl BatchInfo {
    /// Adds what these parts account for.
    pub(crate) fn account(&mut self, parts: &[PieceSlice<PieceBytes>]) {
        for part in parts {
            self.add_input(part.split, part.input.clone());
            if let Some(ids) = &part.payload.row_ids {
                let place = |offset: u32| (offset - part.piece_from) as usize;
                let range = place(part.input.start)..place(part.input.end);
                // Where a piece is one step of several streams, its ids are those of this stream's rows.
                self.row_ids.extend_from_slice(ids.get(range).unwrap_or(ids));
            }
            if is_last_part(part) {
                self.skipped.extend_from_slice(&part.payload.skipped);
            }
        }
    }

    /// Notes which rows the batch holds, where those are not all that it accounts for.
    fn note_kept(&mut self, parts: &[PieceSlice<PieceBytes>]) {
        let accounted: u64 = self.inputs.iter().map(|(_, input)| input.len() as u64).sum();
        if accounted == u64::from(self.rows) {
            return;
        }
        for part in parts.iter().filter(|part| !part.rows.is_empty()) {
            let rows = part.rows.start as usize..part.rows.end as usize;
            let offsets = match &part.payload.kept {
                Some(kept) => kept[rows].to_vec(),
                None => (part.piece_from + part.rows.start..part.piece_from + part.rows.end).collect(),
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

/// Whether this part ends its piece: nothing of it comes later.
pub(crate) fn is_last_part(part: &PieceSlice<PieceBytes>) -> bool {
    part.rows.end as usize == part.payload.records.num_rows()
}

/// Which step a batch belongs to, and its part of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepShare {
    pub(crate) step: Option<u64>,
    pub(crate) weight: f64,
}

/// A run of rows that was taken off a stream, not joined yet.
#[derive(Debug)]
pub(crate) struct TakenBatch {
    pub(crate) info: BatchInfo,
    pub(crate) parts: Vec<PieceSlice<PieceBytes>>,
    /// Columns, for a batch without rows.
    pub(crate) schema: Option<SchemaRef>,
}

impl TakenBatch {
    /// Puts what came before it (`carried`) and the run together.
    pub(crate) fn new(
        stream: u32,
        StepShare { step, weight }: StepShare,
        assembled: AssembledBatch<PieceBytes>,
        carried: BatchInfo,
        schema: Option<SchemaRef>,
    ) -> Self {
        let AssembledBatch { epoch, rows, parts, .. } = assembled;
        let mut info = BatchInfo { stream, step, weight, epoch, rows, ..carried };
        info.account(&parts);
        info.note_kept(&parts);
        Self { info, parts, schema }
    }

    /// The batch. One part is a view, several are copied together.
    ///
    /// # Errors
    /// One clause, when the parts do not go together.
    pub(crate) fn join(self) -> Result<Batch, String> {
        let slice = |part: &PieceSlice<PieceBytes>| {
            part.payload.records.slice(part.rows.start as usize, part.rows.len())
        };
        let filled: Vec<&PieceSlice<PieceBytes>> =
            self.parts.iter().filter(|part| !part.rows.is_empty()).collect();
        let records = match filled.as_slice() {
            [] => {
                // A job that goes on right before such a step has seen no columns yet.
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

/// Adds a run that is no batch to what the next batch carries.
pub(crate) fn carry(carried: &mut BatchInfo, assembled: &AssembledBatch<PieceBytes>) {
    if assembled.kind == RunKind::Dropped {
        carried.dropped_rows += u64::from(assembled.rows);
    }
    carried.account(&assembled.parts);
}
