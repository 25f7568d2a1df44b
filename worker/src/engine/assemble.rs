//! Plain batches: assembles the chunks of a group in one buffer, without copying tensors that operators wrote in place.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use bytes::BytesMut;
use feedline_data::pipeline::OnError;
use feedline_operators::{Column, OutputBuffers};
use feedline_proto::batch::{ALIGNMENT_BYTES, BatchEncoder};
use feedline_proto::services::PieceHeader;

use super::batches::{Assembly, BatchAssembler, GroupRows};
use super::chunk::WorkChunk;
use super::failures::collect_failures;
use super::job::JobContext;
use super::piece::{FinishedPiece, StreamPieces};
use super::slab::{SlabPool, SlabReservation};
use super::trace::QueuedRows;

/// The part of a group's buffer for one tensor column.
struct TensorSection {
    /// The part of the section that has not been assigned to chunks. Chunks get their parts in order.
    rest: BytesMut,
    offset: usize,
    bytes: usize,
}

/// The buffer of a group, divided into one section for each tensor column, and a tail for the other columns.
pub(super) struct PieceAssembler {
    sections: Vec<TensorSection>,
    tail: BytesMut,
    reservation: SlabReservation,
}

/// The tensor columns of a finished piece.
struct JoinedTensors {
    /// The buffer up to the end of the tensors.
    buffer: BytesMut,
    /// Offset of each tensor column.
    offsets: Vec<usize>,
    reservation: SlabReservation,
}

impl PieceAssembler {
    /// Creates an assembler with a buffer for `rows` rows from the pool.
    pub(super) fn new(job: &JobContext, slabs: &Arc<SlabPool>, rows: usize) -> Self {
        let (mut slab, reservation) = slabs.take(job.slab_bytes(rows));
        let mut offset = 0;
        let mut sections = Vec::with_capacity(job.compiled.tensors.len());
        for tensor in &job.compiled.tensors {
            let bytes = (tensor.row_bytes * rows).next_multiple_of(ALIGNMENT_BYTES);
            sections.push(TensorSection { rest: slab.split_to(bytes), offset, bytes });
            offset += bytes;
        }
        Self { sections, tail: slab, reservation }
    }

    /// Joins the chunks' parts of each tensor column. Rows are copied only if earlier rows were removed, or if no
    /// operator wrote them in place.
    fn join_tensors(self, job: &JobContext, chunks: &mut [WorkChunk]) -> JoinedTensors {
        let mut buffer = BytesMut::new();
        let mut offsets = Vec::with_capacity(self.sections.len());
        for (number, section) in self.sections.into_iter().enumerate() {
            offsets.push(section.offset);
            let end = section.offset + section.bytes;
            let shares = chunks.iter_mut().map(|work| take_column(job, work, number)).collect();
            join_section(&mut buffer, section, shares, job.compiled.tensors[number].row_bytes);
            debug_assert_eq!(buffer.len(), end);
        }
        let (mut tail, end) = (self.tail, buffer.len());
        tail.clear();
        buffer.unsplit(tail);
        buffer.truncate(end);
        JoinedTensors { buffer, offsets, reservation: self.reservation }
    }
}

impl BatchAssembler for PieceAssembler {
    fn chunk_buffers(&mut self, job: &JobContext, rows: usize) -> OutputBuffers {
        let mut buffers = OutputBuffers::new();
        for (tensor, section) in job.compiled.tensors.iter().zip(&mut self.sections) {
            if let Some(writer) = &tensor.writer {
                let part = section.rest.split_to(tensor.row_bytes * rows);
                buffers.insert(writer.operator, &writer.column, part);
            }
        }
        buffers
    }

    fn assemble(self: Box<Self>, group: &GroupRows, mut chunks: Vec<WorkChunk>) -> Result<Assembly, String> {
        let (job, rows, compiled) = (&group.job, &group.rows, &group.job.compiled);
        let failed = collect_failures(&chunks, &group.read_failures);
        group.named().check(compiled.on_error(), &failed)?;
        let kept = compiled.details.layout.changes_rows.then(|| kept_offsets(group.offsets.start, &chunks));
        let count: usize = chunks.iter().map(|work| work.chunk.rows()).sum();
        debug_assert!(kept.is_some() || compiled.on_error() != OnError::Skip || count == rows.len());
        let JoinedTensors { mut buffer, offsets, reservation } = self.join_tensors(job, &mut chunks);
        let tensors_end = buffer.len();
        let mut encoder = BatchEncoder::new(count as u32);
        for field in &compiled.output.fields {
            match compiled.tensors.iter().position(|tensor| tensor.column == field.name) {
                Some(number) => {
                    let tensor = &compiled.tensors[number];
                    let bytes = (tensor.row_bytes * count) as u64;
                    encoder.push_in_place(offsets[number] as u64, bytes, tensor.elements_per_row);
                }
                None => encoder.push_array(&join_arrays(&chunks, &field.name)?, &mut buffer)?,
            }
        }
        let batch = encoder.finish(&mut buffer);
        job.record_tail(rows.len(), buffer.len() - tensors_end);
        job.counters.batch.add_rows(rows.len(), count);
        let header = PieceHeader {
            start: group.offsets.start,
            end: group.offsets.end,
            rows: count as u32,
            kept_offsets: kept,
            row_ids: compiled.details.audit.then(|| group.row_ids()),
            skipped: group.named().describe_all(&failed),
            newest_ms: group.newest_ms,
            indivisible: false,
            omitted_rows: None,
            batch,
        };
        let data = SlabPool::finish(buffer, reservation);
        let queued = QueuedRows::begin(&job.counters.batch, None, data.len() as u64);
        let piece = Arc::new(FinishedPiece { header, data, features: None, _queued: queued });
        let streams = vec![StreamPieces { stream: group.split.stream, pieces: vec![piece] }];
        Ok(Assembly::Finished(streams))
    }
}

/// Returns the offsets of the remaining rows in the split. `start` is the offset of the group.
fn kept_offsets(start: u32, chunks: &[WorkChunk]) -> Vec<u32> {
    chunks.iter().flat_map(WorkChunk::indexes).map(|index| start + index as u32).collect()
}

/// The rows of one tensor column in one chunk.
struct TensorShare {
    /// The chunk's part of the section, if no operator wrote to that part.
    unused: Option<BytesMut>,
    data: BytesMut,
    rows: usize,
    /// Whether `data` is the chunk's part of the section.
    in_place: bool,
}

fn take_column(job: &JobContext, work: &mut WorkChunk, number: usize) -> TensorShare {
    let tensor = &job.compiled.tensors[number];
    let unused = tensor.writer.as_ref().and_then(|writer| {
        work.buffers.take(writer.operator, &writer.column).or_else(|| {
            let index = work.reclaimed.iter().position(|reclaimed| reclaimed.tensor == number)?;
            Some(work.reclaimed.swap_remove(index).storage)
        })
    });
    let found = work.chunk.columns.iter_mut().find(|(name, _)| *name == tensor.column);
    let (data, rows) = match found.map(|(_, column)| column) {
        Some(Column::Tensor(found)) => (std::mem::take(&mut found.data), found.rows),
        _ => (BytesMut::new(), 0),
    };
    let in_place = unused.is_none() && tensor.writer.is_some();
    TensorShare { unused, data, rows, in_place }
}

/// Rows to move within the buffer, from a byte offset to a row index.
struct RowMove {
    from: usize,
    row: usize,
    rows: usize,
}

/// Rows to copy into the buffer.
struct RowCopy {
    row: usize,
    data: BytesMut,
    rows: usize,
}

fn join_section(buffer: &mut BytesMut, section: TensorSection, shares: Vec<TensorShare>, row_bytes: usize) {
    let start = section.offset;
    // All parts of the section are joined into one buffer, in order, before any row moves.
    let mut copies: Vec<RowCopy> = Vec::new();
    let mut moves: Vec<RowMove> = Vec::new();
    let (mut at, mut row) = (start, 0);
    for share in shares {
        if share.in_place {
            moves.push(RowMove { from: at, row, rows: share.rows });
            at += share.data.len();
            buffer.unsplit(share.data);
        } else {
            if let Some(unused) = share.unused {
                at += unused.len();
                buffer.unsplit(unused);
            }
            copies.push(RowCopy { row, data: share.data, rows: share.rows });
        }
        row += share.rows;
    }
    buffer.unsplit(section.rest);
    // Rows move to lower addresses in ascending order, so no row is overwritten before it is read.
    for RowMove { from, row, rows } in moves {
        let to = start + row * row_bytes;
        if from != to {
            buffer.copy_within(from..from + rows * row_bytes, to);
        }
    }
    for RowCopy { row, data, rows } in copies {
        let to = start + row * row_bytes;
        buffer[to..to + rows * row_bytes].copy_from_slice(&data[..rows * row_bytes]);
    }
}

fn join_arrays(chunks: &[WorkChunk], name: &str) -> Result<ArrayRef, String> {
    let mut arrays: Vec<&dyn Array> = Vec::with_capacity(chunks.len());
    for work in chunks {
        match work.chunk.column(name) {
            Some(Column::Arrow(array)) => arrays.push(array.as_ref()),
            _ => {
                return Err(format!("column `{name}` does not match its schema type; please report this"));
            }
        }
    }
    arrow::compute::concat(&arrays).map_err(|error| format!("cannot join column `{name}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW_BYTES: usize = 2;

    /// Joins shares of a section for six rows, which begins after four other bytes.
    fn join(shares: impl FnOnce(&mut BytesMut) -> Vec<TensorShare>) -> Vec<u8> {
        let mut buffer = BytesMut::zeroed(16);
        let mut rest = buffer.split_off(4);
        let shares = shares(&mut rest);
        let section = TensorSection { rest, offset: 4, bytes: 12 };
        join_section(&mut buffer, section, shares, ROW_BYTES);
        assert_eq!(buffer.len(), 16);
        buffer[4..].to_vec()
    }

    fn in_place(rest: &mut BytesMut, values: &[u8], rows: usize) -> TensorShare {
        let mut data = rest.split_to(values.len());
        data.copy_from_slice(values);
        TensorShare { unused: None, data, rows, in_place: true }
    }

    fn copied(rest: &mut BytesMut, bytes: usize, values: &[u8]) -> TensorShare {
        let unused = (bytes > 0).then(|| rest.split_to(bytes));
        TensorShare { unused, data: BytesMut::from(values), rows: values.len() / ROW_BYTES, in_place: false }
    }

    #[test]
    fn rows_written_in_place_stay_where_they_are() {
        let joined = join(|rest| vec![in_place(rest, &[1, 2, 3, 4], 2), in_place(rest, &[5, 6, 7, 8], 2)]);
        assert_eq!(joined[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn rows_move_up_when_earlier_rows_were_removed() {
        let joined = join(|rest| {
            vec![
                in_place(rest, &[1, 2, 0, 0], 1),
                in_place(rest, &[3, 4, 0, 0], 1),
                in_place(rest, &[5, 6, 7, 8], 2),
            ]
        });
        assert_eq!(joined[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn rows_in_other_buffers_are_copied_between_the_others() {
        let joined = join(|rest| {
            vec![
                in_place(rest, &[1, 2, 0, 0], 1),
                copied(rest, 4, &[3, 4]),
                in_place(rest, &[5, 6, 0, 0], 1),
                copied(rest, 0, &[]),
            ]
        });
        assert_eq!(joined[..6], [1, 2, 3, 4, 5, 6]);
    }
}
