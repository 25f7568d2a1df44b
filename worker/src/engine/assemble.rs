//! Puts the chunks of a group together into one buffer. Tensors that operators wrote in place are only joined.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use bytes::BytesMut;
use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_operators::Column;
use feedline_proto::batch::{ALIGNMENT_BYTES, BatchEncoder};
use feedline_proto::services::{PieceHeader, SkippedRow};

use super::chunk::WorkChunk;
use super::group::{FinishedPiece, check_failures, describe_row};
use super::job::JobContext;
use super::slab::{SlabPool, SlabReservation};
use super::trace::QueuedRows;

/// The place of one tensor column in a group's buffer.
pub(super) struct TensorSection {
    /// What no chunk has been given.
    pub(super) rest: BytesMut,
    offset: usize,
    bytes: usize,
}

/// The buffer of a group in its parts: sections of tensors, the rest behind them, and how the pool counts it.
pub(super) type GroupBuffer = (Vec<TensorSection>, BytesMut, SlabReservation);

/// Takes a buffer and cuts it into the columns' sections.
pub(super) fn cut_slab(job: &JobContext, slabs: &Arc<SlabPool>, rows: usize) -> GroupBuffer {
    let (mut slab, counted) = slabs.take(job.slab_bytes(rows));
    let mut offset = 0;
    let mut sections = Vec::with_capacity(job.tensors.len());
    for tensor in &job.tensors {
        let bytes = (tensor.row_bytes * rows).next_multiple_of(ALIGNMENT_BYTES);
        sections.push(TensorSection { rest: slab.split_to(bytes), offset, bytes });
        offset += bytes;
    }
    (sections, slab, counted)
}

/// Builds the finished piece of the split's rows `offsets`.
pub(super) fn assemble(
    job: &JobContext,
    rows: &[RowRef],
    read_failures: &BTreeMap<usize, (Option<u64>, String)>,
    offsets: Range<u32>,
    mut chunks: Vec<WorkChunk>,
    parts: GroupBuffer,
) -> Result<FinishedPiece, String> {
    let failed = failures(&chunks, read_failures);
    check_failures(job, rows, &failed)?;
    let skipped: Vec<SkippedRow> = failed
        .iter()
        .map(|(place, (offset, reason))| describe_row(job, &rows[*place], *offset, reason))
        .collect();
    let kept = job.details.layout.changes_rows.then(|| kept_offsets(offsets.start, &chunks));
    let count: usize = chunks.iter().map(|work| work.chunk.rows()).sum();
    debug_assert!(kept.is_some() || job.on_error() != OnError::Skip || count == rows.len());
    let (mut buffer, placed, counted) = join_tensors(job, &mut chunks, parts);
    let tensors_end = buffer.len();
    let mut encoder = BatchEncoder::new(count as u32);
    for field in &job.output.fields {
        match job.tensors.iter().position(|tensor| tensor.column == field.name) {
            Some(number) => {
                let tensor = &job.tensors[number];
                let bytes = tensor.row_bytes * count;
                encoder.push_in_place(placed[number] as u64, bytes as u64, tensor.elements_per_row);
            }
            None => encoder.push_array(&join_arrays(&chunks, &field.name)?, &mut buffer)?,
        }
    }
    let batch = encoder.finish(&mut buffer);
    job.note_tail(rows.len(), buffer.len() - tensors_end);
    job.batch_counters.add_rows(rows.len(), count);
    let header = PieceHeader {
        from: offsets.start,
        to: offsets.end,
        rows: count as u32,
        kept,
        row_ids: job.details.audit.then(|| rows.iter().map(|row| row.row_id).collect()),
        skipped,
        batch,
    };
    let data = SlabPool::finish(buffer, counted);
    let waiting = QueuedRows::begin(&job.batch_counters, None, data.len() as u64);
    Ok(FinishedPiece { header, data, _waiting: waiting })
}

/// Rows that failed in these chunks, by their place in the group: where in the shard, if that is known, and why.
pub(super) fn failures(
    chunks: &[WorkChunk],
    read_failures: &BTreeMap<usize, (Option<u64>, String)>,
) -> BTreeMap<usize, (Option<u64>, String)> {
    let mut failed = BTreeMap::new();
    for work in chunks {
        for (origin, reason) in &work.chunk.failures {
            let place = work.start + *origin as usize;
            let offset = read_failures.get(&place).and_then(|(offset, _)| *offset);
            failed.insert(place, (offset, reason.clone()));
        }
    }
    failed
}

/// Offsets in the split of the rows that remain.
fn kept_offsets(start: u32, chunks: &[WorkChunk]) -> Vec<u32> {
    let of = |work: &WorkChunk| {
        let first = start + work.start as u32;
        work.chunk.origins.iter().map(move |origin| first + origin).collect::<Vec<_>>()
    };
    chunks.iter().flat_map(of).collect()
}

/// Joins the chunks' parts of each tensor column into its section; rows move only where some have left, or where an
/// operator did not write in place. Returns the buffer up to the end of the tensors, and each column's offset.
fn join_tensors(
    job: &JobContext,
    chunks: &mut [WorkChunk],
    parts: GroupBuffer,
) -> (BytesMut, Vec<usize>, SlabReservation) {
    let (sections, tail, counted) = parts;
    let mut buffer = BytesMut::new();
    let mut placed = Vec::with_capacity(sections.len());
    for (number, section) in sections.into_iter().enumerate() {
        placed.push(section.offset);
        let end = section.offset + section.bytes;
        let pieces = chunks.iter_mut().map(|work| take_column(job, work, number)).collect();
        join_section(&mut buffer, section, pieces, job.tensors[number].row_bytes);
        debug_assert_eq!(buffer.len(), end);
    }
    let mut tail = tail;
    tail.clear();
    let end = buffer.len();
    buffer.unsplit(tail);
    buffer.truncate(end);
    (buffer, placed, counted)
}

/// One chunk's share of a column.
struct Share {
    /// The part of the section that was cut for the chunk, if it did not come back as `data`.
    unused: Option<BytesMut>,
    /// The rows.
    data: BytesMut,
    rows: usize,
    /// Whether `data` is the part of the section that was cut for the chunk.
    in_place: bool,
}

fn take_column(job: &JobContext, work: &mut WorkChunk, number: usize) -> Share {
    let tensor = &job.tensors[number];
    let unused = match &tensor.writer {
        None => None,
        Some((operator, column)) => work.slots.take(*operator, column).or_else(|| {
            let place = work.reclaimed.iter().position(|(reclaimed, _)| *reclaimed == number)?;
            Some(work.reclaimed.swap_remove(place).1)
        }),
    };
    let found = work.chunk.columns.iter_mut().find(|(name, _)| *name == tensor.column);
    let (data, rows) = match found.map(|(_, column)| column) {
        Some(Column::Tensor(found)) => (std::mem::take(&mut found.data), found.rows),
        Some(Column::Arrow(array)) => (arrow_tensor_bytes(array, tensor.row_bytes), array.len()),
        _ => (BytesMut::new(), 0),
    };
    let in_place = unused.is_none() && tensor.writer.is_some();
    Share { unused, data, rows, in_place }
}

/// A tensor column that comes from the source as it is.
fn arrow_tensor_bytes(array: &ArrayRef, row_bytes: usize) -> BytesMut {
    let data = array.to_data();
    let values = data.child_data().first().and_then(|child| Some((child.offset(), child.buffers().first()?)));
    let Some((_, values)) = values else { return BytesMut::zeroed(row_bytes * array.len()) };
    let start = data.offset() * row_bytes;
    BytesMut::from(&values.as_slice()[start..start + row_bytes * array.len()])
}

fn join_section(buffer: &mut BytesMut, section: TensorSection, shares: Vec<Share>, row_bytes: usize) {
    let start = section.offset;
    // First the memory: every part of the section, in order, whoever holds it now.
    let mut copies: Vec<(usize, BytesMut, usize)> = Vec::new();
    let mut moves: Vec<(usize, usize, usize)> = Vec::new();
    let mut at = start;
    let mut row = 0;
    for share in shares {
        if share.in_place {
            moves.push((at, row, share.rows));
            at += share.data.len();
            buffer.unsplit(share.data);
        } else {
            if let Some(unused) = share.unused {
                at += unused.len();
                buffer.unsplit(unused);
            }
            copies.push((row, share.data, share.rows));
        }
        row += share.rows;
    }
    buffer.unsplit(section.rest);
    // Then the rows: moves go down in ascending order, so nothing is overwritten before it is read.
    for (from, row, rows) in moves {
        let to = start + row * row_bytes;
        if from != to {
            buffer.copy_within(from..from + rows * row_bytes, to);
        }
    }
    for (row, data, rows) in copies {
        let to = start + row * row_bytes;
        buffer[to..to + rows * row_bytes].copy_from_slice(&data[..rows * row_bytes]);
    }
}

fn join_arrays(chunks: &[WorkChunk], name: &str) -> Result<ArrayRef, String> {
    let mut arrays: Vec<&dyn Array> = Vec::with_capacity(chunks.len());
    for work in chunks {
        match work.chunk.column(name) {
            Some(Column::Arrow(array)) => arrays.push(array.as_ref()),
            _ => return Err(format!("column `{name}` is not what the pipeline says; please report this")),
        }
    }
    arrow::compute::concat(&arrays).map_err(|error| format!("column `{name}` cannot be joined: {error}"))
}
