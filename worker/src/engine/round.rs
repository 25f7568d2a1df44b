//! Coordinated batches: assembles the chunks of a whole round, and builds the pieces of every stream.
//!
//! A worker that has a lease for one stream's split of a round computes the round for all streams, because the rows of
//! a step depend on all rows of the round.

mod cache;
mod columns;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use feedline_data::pipeline::{BucketByLength, OnError, PadTo};
use feedline_operators::OutputBuffers;
use feedline_proto::batch::BatchEncoder;
use feedline_proto::services::PieceHeader;

pub(super) use self::cache::RoundCache;
pub(super) use self::columns::join_column;
use self::columns::{ColumnPadding, ListFiller, list_lengths, packed_columns, rows_with_nulls};
use super::batches::{Assembly, BatchAssembler, GroupRows};
use super::chunk::WorkChunk;
use super::coordination::{BatchMode, Coordination, OutputRow, RoundStep};
use super::failures::{FailedRow, GroupFailures, collect_failures};
use super::job::JobContext;
use super::memory_budget::MemoryReservation;
use super::piece::{FinishedPiece, StreamPieces};
use super::slab::SlabPool;
use super::trace::QueuedRows;

/// Maximum number of bytes that a column in a batch needs in addition to its values.
const COLUMN_OVERHEAD_BYTES: usize = 512;

/// Assembles a round. Buffers are allocated only after the rows of each step are known.
pub(super) struct RoundAssembler {
    /// Memory that admission reserved for the buffers.
    pub(super) buffer_reservation: MemoryReservation,
}

impl BatchAssembler for RoundAssembler {
    fn chunk_buffers(&mut self, _job: &JobContext, _rows: usize) -> OutputBuffers {
        OutputBuffers::new()
    }

    fn assemble(self: Box<Self>, group: &GroupRows, chunks: Vec<WorkChunk>) -> Result<Assembly, String> {
        let compiled = &group.job.compiled;
        let Some(coordination) = &compiled.coordination else {
            return Err("the job is not coordinated; please report this".to_owned());
        };
        let mut failed = collect_failures(&chunks, &group.read_failures);
        group.named().check(compiled.on_error(), &failed)?;
        let mut rows = RoundRows::gather(coordination, &chunks)?;
        drop(chunks);
        rows.reject_nulls(coordination, compiled.on_error(), &mut failed)?;
        rows.apply_length_limit(coordination, compiled.on_error(), &mut failed);
        group.named().check(compiled.on_error(), &failed)?;
        let steps = coordination.steps(&rows.lengths, compiled.details.layout.streams);
        let mut streams = PieceBuilder::new(group, coordination, &rows)?.build_all(&steps)?;
        if let Some(last) = streams.first_mut().and_then(|first| first.last_mut()) {
            last.header.skipped = group.named().describe_all(&failed);
            let removed = rows.removed(group.rows.len()).map(|index| group.rows[index].row_id);
            last.header.row_ids.get_or_insert_default().extend(removed);
        }
        let pieces = || streams.iter().flatten();
        group.job.record_tail(group.rows.len(), pieces().map(|piece| piece.data.len()).sum());
        let rows_out = pieces().map(|piece| piece.header.rows as usize).sum();
        group.job.counters.batch.add_rows(group.rows.len(), rows_out);
        drop(self.buffer_reservation);
        let stream_pieces = |(stream, pieces): (u32, Vec<FinishedPiece>)| StreamPieces {
            stream,
            pieces: pieces.into_iter().map(Arc::new).collect(),
        };
        Ok(Assembly::Finished((0..).zip(streams).map(stream_pieces).collect()))
    }
}

/// The rows of a round that remain after the operators.
struct RoundRows {
    columns: Vec<(String, ArrayRef)>,
    /// Index of each row in the round.
    indexes: Vec<usize>,
    /// List length of each row in each of [`Coordination::columns`], row by row.
    lengths: Vec<u32>,
}

impl RoundRows {
    fn gather(coordination: &Coordination, chunks: &[WorkChunk]) -> Result<Self, String> {
        let indexes = chunks.iter().flat_map(WorkChunk::indexes).collect();
        let mut columns = Vec::with_capacity(coordination.input.fields().len());
        for field in coordination.input.fields() {
            columns.push((field.name().clone(), join_column(chunks, field)?));
        }
        let lengths = list_lengths(&columns, coordination.columns())?;
        Ok(Self { columns, indexes, lengths })
    }

    /// Marks rows with null lists or null elements as failed, because batches and packed rows have no nulls.
    fn reject_nulls(
        &mut self,
        coordination: &Coordination,
        on_error: OnError,
        failed: &mut GroupFailures,
    ) -> Result<(), String> {
        let found = rows_with_nulls(&self.columns, coordination.columns())?;
        self.fail(found, coordination, on_error, failed);
        Ok(())
    }

    /// Marks rows whose lists exceed the length limit of the pipeline as failed.
    fn apply_length_limit(
        &mut self,
        coordination: &Coordination,
        on_error: OnError,
        failed: &mut GroupFailures,
    ) {
        let names = coordination.columns();
        if let Some(length) = coordination.truncation() {
            self.lengths.iter_mut().for_each(|own| *own = (*own).min(length));
        }
        let Some(limit) = coordination.length_limit() else { return };
        let mut found = Vec::new();
        for (row, lengths) in self.lengths.chunks(names.len()).enumerate() {
            let Some(column) = lengths.iter().position(|&length| length > limit.elements) else { continue };
            let reason = format!(
                "column `{}` has {} elements, but the limit is {}, {}",
                names[column], lengths[column], limit.elements, limit.advice
            );
            found.push((row, reason));
        }
        self.fail(found, coordination, on_error, failed);
    }

    /// Marks rows as failed. Depending on `on_error`, failed rows are removed or their lists become empty.
    fn fail(
        &mut self,
        rows: Vec<(usize, String)>,
        coordination: &Coordination,
        on_error: OnError,
        failed: &mut GroupFailures,
    ) {
        let columns = coordination.columns().len();
        let mut keep = vec![true; self.indexes.len()];
        for (row, reason) in rows {
            failed.entry(self.indexes[row]).or_insert(FailedRow { offset: None, reason });
            self.lengths[row * columns..][..columns].fill(0);
            keep[row] = on_error != OnError::Skip;
        }
        if keep.contains(&false) {
            self.retain(&keep);
        }
    }

    fn retain(&mut self, keep: &[bool]) {
        let kept = (0..).zip(keep).filter(|(_, keep)| **keep).map(|(row, _)| row);
        let kept = UInt32Array::from_iter_values(kept);
        for (_, column) in &mut self.columns {
            *column = arrow::compute::take(column, &kept, None).expect("the rows are those of the column");
        }
        let width = self.lengths.len() / self.indexes.len().max(1);
        let lengths = |&row: &u32| self.lengths[row as usize * width..][..width].to_vec();
        self.lengths = kept.values().iter().flat_map(lengths).collect();
        self.indexes = kept.values().iter().map(|&row| self.indexes[row as usize]).collect();
    }

    /// Indexes of the rows that operators or the length limit have removed from a round of `count` rows.
    fn removed(&self, count: usize) -> impl Iterator<Item = usize> {
        let mut is_left = vec![false; count];
        self.indexes.iter().for_each(|&index| is_left[index] = true);
        is_left.into_iter().enumerate().filter(|(_, is_left)| !is_left).map(|(index, _)| index)
    }
}

/// Builds the pieces of a round.
struct PieceBuilder<'a> {
    group: &'a GroupRows,
    coordination: &'a Coordination,
    rows: &'a RoundRows,
    /// Pads or packs each of [`Coordination::columns`], in the same order.
    fillers: Vec<ListFiller<'a>>,
}

impl<'a> PieceBuilder<'a> {
    fn new(
        group: &'a GroupRows,
        coordination: &'a Coordination,
        rows: &'a RoundRows,
    ) -> Result<Self, String> {
        let names = coordination.columns();
        let mut fillers = Vec::with_capacity(names.len());
        for (number, name) in names.iter().enumerate() {
            let padding = ColumnPadding {
                element: columns::element_type(&group.job.compiled.output_arrow, name)?,
                value: coordination.padding(),
                column: number,
                columns: names.len(),
            };
            let list = columns::list_column(&rows.columns, name)?;
            fillers.push(ListFiller::new(list, &rows.lengths, padding)?);
        }
        Ok(Self { group, coordination, rows, fillers })
    }

    /// Builds the pieces of each stream: one piece for each step.
    fn build_all(&self, steps: &[RoundStep]) -> Result<Vec<Vec<FinishedPiece>>, String> {
        let mut streams: Vec<Vec<FinishedPiece>> =
            steps.first().map_or_else(Vec::new, |step| step.streams.iter().map(|_| Vec::new()).collect());
        let mut from = 0;
        for (number, step) in steps.iter().enumerate() {
            let inputs = step.streams.iter().flatten().map(|row| row.len() as u32).sum::<u32>();
            let is_last = number + 1 == steps.len();
            let to = if is_last { self.group.rows.len() as u32 } else { from + inputs };
            for (own, stream) in step.streams.iter().zip(&mut streams) {
                stream.push(self.build(step, own, from..to)?);
            }
            from = to;
        }
        Ok(streams)
    }

    /// Builds the piece of one stream for one step. `own` are the rows of the stream.
    fn build(
        &self,
        step: &RoundStep,
        own: &[OutputRow],
        offsets: Range<u32>,
    ) -> Result<FinishedPiece, String> {
        let arrays = match &self.coordination.mode {
            BatchMode::Bucket(bucket) => self.bucket_columns(bucket, step, own)?,
            BatchMode::Pack(pack) => packed_columns(&self.fillers, own, pack.length)?,
        };
        let values = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or_default();
        let bytes = arrays.iter().map(|array| values(array) + COLUMN_OVERHEAD_BYTES).sum();
        let (mut buffer, reservation) = self.group.slabs.take(bytes);
        buffer.clear();
        let mut encoder = BatchEncoder::new(own.len() as u32);
        for array in &arrays {
            encoder.push_array(array, &mut buffer)?;
        }
        let batch = encoder.finish(&mut buffer);
        let id = |row: &u32| self.group.rows[self.rows.indexes[*row as usize]].row_id;
        let header = PieceHeader {
            start: offsets.start,
            end: offsets.end,
            rows: own.len() as u32,
            // Each stream uses the first offsets of the step, one for each of its rows.
            kept_offsets: Some((offsets.start..offsets.start + own.len() as u32).collect()),
            row_ids: Some(own.iter().flatten().map(id).collect()),
            skipped: Vec::new(),
            newest_ms: self.group.newest_ms,
            indivisible: false,
            omitted_rows: None,
            batch,
        };
        let data = SlabPool::finish(buffer, reservation);
        let queued = QueuedRows::begin(&self.group.job.counters.batch, None, data.len() as u64);
        Ok(FinishedPiece { header, data, features: None, _queued: queued })
    }

    /// Builds the columns of a bucketed batch. Lists are padded to the same length in all streams.
    fn bucket_columns(
        &self,
        bucket: &BucketByLength,
        step: &RoundStep,
        own: &[OutputRow],
    ) -> Result<Vec<ArrayRef>, String> {
        let own: Vec<u32> = own.iter().flatten().copied().collect();
        let picked = UInt32Array::from(own.clone());
        let mut arrays = Vec::with_capacity(self.rows.columns.len());
        for (name, column) in &self.rows.columns {
            let number = bucket.columns.iter().position(|padded| padded == name);
            arrays.push(match number.map(|number| &self.fillers[number]) {
                Some(filler) => {
                    Arc::new(filler.lists(&own, padded_length(bucket, step, filler))?) as ArrayRef
                }
                None => arrow::compute::take(column, &picked, None).map_err(|error| error.to_string())?,
            });
        }
        Ok(arrays)
    }
}

/// Returns the padded length of the lists of a step, or `None` if lists are not padded.
fn padded_length(bucket: &BucketByLength, step: &RoundStep, filler: &ListFiller<'_>) -> Option<u32> {
    let rows = step.streams.iter().flatten().flatten();
    let longest = || rows.map(|&row| filler.length(row)).max().unwrap_or(0);
    match bucket.pad {
        PadTo::None => None,
        PadTo::Longest => Some(longest()),
        PadTo::Boundary => Some(bucket.boundaries.get(step.bucket).copied().unwrap_or_else(longest)),
    }
}

#[cfg(test)]
mod tests;
