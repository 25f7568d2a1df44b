//! Reads the frames of one fetch, and decodes pieces.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use feedline_proto::batch::ALIGNMENT_BYTES;
use feedline_proto::decode_batch;
use feedline_proto::services::{Frame, PieceHeader, SkippedRow};

use crate::receive_pool::{ReceiveBuffer, ReceivePool};

/// The content of a piece.
#[derive(Debug)]
pub(crate) struct PieceData {
    pub(crate) records: RecordBatch,
    pub(crate) row_ids: Option<Vec<u64>>,
    /// Offsets of the rows in the split. `None` if operators removed no row.
    pub(crate) kept: Option<Vec<u32>>,
    pub(crate) skipped: Vec<SkippedRow>,
    /// Size of the buffer.
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

/// The effect of a frame.
#[derive(Debug)]
pub(crate) enum FrameEvent {
    /// No effect.
    None,
    /// The worker is computing the next piece.
    Working,
    /// A piece has started. Contains the size of the piece in bytes.
    PieceOpened(u64),
    /// Bytes of a piece have arrived. Contains their number.
    Bytes(u64),
    /// The last `bytes` bytes of a piece have arrived. Contains the complete piece.
    Piece { bytes: u64, piece: ReadPiece },
    /// A row failed, with the error message.
    RowFailed(String),
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
    buffer: Option<ReceiveBuffer>,
}

impl PieceReader {
    pub(crate) fn new(pool: Arc<ReceivePool>) -> Self {
        Self { pool, schema: None, open: None }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// Returns an error if the frame is invalid or out of order.
    pub(crate) fn read(&mut self, frame: Frame) -> Result<FrameEvent, String> {
        match frame {
            Frame::Schema(schema) => {
                self.schema = Some(schema);
                Ok(FrameEvent::None)
            }
            Frame::Piece(header) => self.on_header(header),
            Frame::Chunk { offset, data } => self.on_chunk(offset, data),
            Frame::Working if self.open.is_some() => {
                Err("a working frame arrived before the end of a piece".to_owned())
            }
            Frame::Working => Ok(FrameEvent::Working),
            Frame::Failed(message) => Ok(FrameEvent::RowFailed(message)),
            Frame::End if self.open.is_some() => Err("the stream ended before the end of a piece".to_owned()),
            Frame::End => Ok(FrameEvent::End),
        }
    }

    fn on_header(&mut self, header: PieceHeader) -> Result<FrameEvent, String> {
        if self.open.is_some() {
            return Err("a piece started before the end of the previous piece".to_owned());
        }
        check_header(&header)?;
        let bytes = header.batch.total_bytes;
        if bytes == 0 {
            return Ok(FrameEvent::Piece { bytes: 0, piece: self.decode(header, &Bytes::new())? });
        }
        self.open = Some(OpenPiece { header, buffer: None });
        Ok(FrameEvent::PieceOpened(bytes))
    }

    fn on_chunk(&mut self, offset: u64, data: Bytes) -> Result<FrameEvent, String> {
        let Some(mut open) = self.open.take() else {
            return Err("a chunk arrived before the header of its piece".to_owned());
        };
        let (bytes, total) = (data.len() as u64, open.header.batch.total_bytes);
        let filled = open.buffer.as_ref().map_or(0, |buffer| buffer.filled() as u64);
        if offset != filled || filled + bytes > total {
            return Err(format!(
                "a chunk of {bytes} bytes has offset {offset}, but {filled} of {total} bytes of the piece have arrived"
            ));
        }
        let is_aligned = (data.as_ptr() as usize).is_multiple_of(ALIGNMENT_BYTES);
        if bytes == total && is_aligned && !self.pool.is_pinned() {
            return Ok(FrameEvent::Piece { bytes, piece: self.decode(open.header, &data)? });
        }
        let size = usize::try_from(total).map_err(|_| "the piece is larger than the address space")?;
        let buffer = open.buffer.get_or_insert_with(|| self.pool.acquire(size));
        if !buffer.append(&data) {
            return Err("the chunks contain more bytes than the piece".to_owned());
        }
        if filled + bytes < total {
            self.open = Some(open);
            return Ok(FrameEvent::Bytes(bytes));
        }
        let whole = open.buffer.take().map(ReceiveBuffer::freeze).unwrap_or_default();
        Ok(FrameEvent::Piece { bytes, piece: self.decode(open.header, &whole)? })
    }

    fn decode(&self, header: PieceHeader, data: &Bytes) -> Result<ReadPiece, String> {
        let schema = self.schema.as_ref().ok_or("a piece arrived before the schema")?;
        let records = decode_batch(schema, &header.batch, data)?;
        let PieceHeader { start: from, end: to, kept_offsets: kept, row_ids, skipped, batch, .. } = header;
        let payload = PieceData { records, row_ids, kept: kept.clone(), skipped, bytes: batch.total_bytes };
        Ok(ReadPiece { from, to, kept, payload: Arc::new(payload) })
    }
}

fn check_header(header: &PieceHeader) -> Result<(), String> {
    let PieceHeader { start: from, end: to, rows, .. } = *header;
    let kept = header.kept_offsets.as_ref().map_or(to.saturating_sub(from), |kept| kept.len() as u32);
    if from > to || rows != header.batch.rows || rows != kept {
        return Err(format!(
            "the header of the piece with offsets {from} to {to} has {rows} rows, but the piece contains {kept}"
        ));
    }
    if let Some(kept) = &header.kept_offsets {
        let ascending = kept.is_sorted_by(|left, right| left < right);
        if !ascending || kept.iter().any(|offset| !(from..to).contains(offset)) {
            return Err(format!("the piece with offsets {from} to {to} contains rows outside of this range"));
        }
    }
    // In a coordinated job, a piece contains only the IDs of its own rows, which may be fewer than its offsets.
    if header.row_ids.as_ref().is_some_and(|ids| ids.len() > (to - from) as usize) {
        return Err(format!("the piece with offsets {from} to {to} has more row ids than rows"));
    }
    Ok(())
}
