//! Reads the frames of one fetch: puts chunks together and decodes pieces.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use feedline_proto::batch::ALIGNMENT_BYTES;
use feedline_proto::decode_batch;
use feedline_proto::services::{Frame, PieceHeader, SkippedRow};

use crate::receive_pool::{ReceiveBuffer, ReceivePool};

/// What a piece carries beside its place in the split.
#[derive(Debug)]
pub(crate) struct PieceData {
    pub(crate) records: RecordBatch,
    pub(crate) row_ids: Option<Vec<u64>>,
    /// Offsets in the split of its rows; `None` when operators removed none.
    pub(crate) kept: Option<Vec<u32>>,
    pub(crate) skipped: Vec<SkippedRow>,
    /// Size of its buffer.
    pub(crate) bytes: u64,
}

pub(crate) type PieceBytes = Arc<PieceData>;

/// A decoded piece.
#[derive(Debug)]
pub(crate) struct ReadPiece {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) kept: Option<Vec<u32>>,
    pub(crate) payload: PieceBytes,
}

/// What a frame told.
#[derive(Debug)]
pub(crate) enum FrameEvent {
    /// Nothing to act on.
    Nothing,
    /// Nothing is ready, and the worker goes on.
    Working,
    /// A piece of this many bytes begins.
    Opened(u64),
    /// Bytes of a piece.
    Bytes(u64),
    /// The last `bytes` of a piece came and complete it.
    Piece { bytes: u64, piece: ReadPiece },
    /// A row failed: one sentence.
    Failed(String),
    /// The split is complete.
    End,
}

/// Reads the frames of one fetch, in order.
#[derive(Debug)]
pub(crate) struct PieceReader {
    pool: Arc<ReceivePool>,
    schema: Option<SchemaRef>,
    open: Option<OpenPiece>,
}

#[derive(Debug)]
struct OpenPiece {
    header: PieceHeader,
    slab: Option<ReceiveBuffer>,
}

impl PieceReader {
    pub(crate) fn new(pool: Arc<ReceivePool>) -> Self {
        Self { pool, schema: None, open: None }
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// One clause, for frames that do not follow each other or cannot be decoded.
    pub(crate) fn take(&mut self, frame: Frame) -> Result<FrameEvent, String> {
        match frame {
            Frame::Schema(schema) => {
                self.schema = Some(schema);
                Ok(FrameEvent::Nothing)
            }
            Frame::Piece(header) => self.on_header(header),
            Frame::Chunk { offset, data } => self.on_chunk(offset, data),
            Frame::Working if self.open.is_some() => {
                Err("a worker that goes on stops inside a piece".to_owned())
            }
            Frame::Working => Ok(FrameEvent::Working),
            Frame::Failed(message) => Ok(FrameEvent::Failed(message)),
            Frame::End if self.open.is_some() => Err("it ends inside a piece".to_owned()),
            Frame::End => Ok(FrameEvent::End),
        }
    }

    fn on_header(&mut self, header: PieceHeader) -> Result<FrameEvent, String> {
        if self.open.is_some() {
            return Err("a piece begins inside another".to_owned());
        }
        check_header(&header)?;
        let bytes = header.batch.total_bytes;
        if bytes == 0 {
            return Ok(FrameEvent::Piece { bytes: 0, piece: self.decode(header, &Bytes::new())? });
        }
        self.open = Some(OpenPiece { header, slab: None });
        Ok(FrameEvent::Opened(bytes))
    }

    fn on_chunk(&mut self, offset: u64, data: Bytes) -> Result<FrameEvent, String> {
        let Some(mut open) = self.open.take() else { return Err("bytes come before their piece".to_owned()) };
        let (bytes, total) = (data.len() as u64, open.header.batch.total_bytes);
        let filled = open.slab.as_ref().map_or(0, |slab| slab.filled() as u64);
        if offset != filled || filled + bytes > total {
            return Err(format!("{bytes} bytes came for offset {offset} where {filled} of {total} had come"));
        }
        let is_aligned = (data.as_ptr() as usize).is_multiple_of(ALIGNMENT_BYTES);
        if bytes == total && is_aligned && !self.pool.is_pinned() {
            return Ok(FrameEvent::Piece { bytes, piece: self.decode(open.header, &data)? });
        }
        let size = usize::try_from(total).map_err(|_| "a piece is larger than the memory")?;
        let slab = open.slab.get_or_insert_with(|| self.pool.take(size));
        if !slab.append(&data) {
            return Err("more bytes came than the piece has".to_owned());
        }
        if filled + bytes < total {
            self.open = Some(open);
            return Ok(FrameEvent::Bytes(bytes));
        }
        let whole = open.slab.take().map(ReceiveBuffer::freeze).unwrap_or_default();
        Ok(FrameEvent::Piece { bytes, piece: self.decode(open.header, &whole)? })
    }

    fn decode(&self, header: PieceHeader, data: &Bytes) -> Result<ReadPiece, String> {
        let schema = self.schema.as_ref().ok_or("a piece comes before its columns")?;
        let records = decode_batch(schema, &header.batch, data)?;
        let PieceHeader { from, to, kept, row_ids, skipped, batch, .. } = header;
        let payload = PieceData { records, row_ids, kept: kept.clone(), skipped, bytes: batch.total_bytes };
        Ok(ReadPiece { from, to, kept, payload: Arc::new(payload) })
    }
}

fn check_header(header: &PieceHeader) -> Result<(), String> {
    let PieceHeader { from, to, rows, .. } = *header;
    let kept = header.kept.as_ref().map_or(to.saturating_sub(from), |kept| kept.len() as u32);
    if from > to || rows != header.batch.rows || rows != kept {
        return Err(format!("a piece of rows {from} to {to} says that {rows} remain and carries {kept}"));
    }
    if let Some(kept) = &header.kept {
        let ascending = kept.is_sorted_by(|left, right| left < right);
        if !ascending || kept.iter().any(|offset| !(from..to).contains(offset)) {
            return Err(format!("a piece of rows {from} to {to} lists rows that lie elsewhere"));
        }
    }
    // A step of a coordinated job has the ids of its own rows only, which may be fewer.
    if header.row_ids.as_ref().is_some_and(|ids| ids.len() > (to - from) as usize) {
        return Err(format!("a piece of rows {from} to {to} has more row ids than rows"));
    }
    Ok(())
}
