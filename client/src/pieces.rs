//! Reads the frames of one fetch, and decodes pieces.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use feedline_proto::batch::{ALIGNMENT_BYTES, BatchCompleter};
use feedline_proto::decode_batch;
use feedline_proto::services::{Frame, PieceHeader, SkippedRow};
use metrics::counter;

use crate::feature_cache::CachedRows;
use crate::metrics::FEATURE_CACHE_SAVED_BYTES_TOTAL;
use crate::receive_pool::{ReceiveBuffer, ReceivePool};

/// The content of a piece.
#[derive(Debug)]
pub(crate) struct PieceData {
    pub(crate) records: RecordBatch,
    /// Number of output rows. An indivisible piece has one record for all of them.
    pub(crate) rows: u32,
    pub(crate) is_indivisible: bool,
    pub(crate) row_ids: Option<Vec<u64>>,
    /// Offsets of the rows in the split. `None` if operators removed no row.
    pub(crate) kept: Option<Vec<u32>>,
    pub(crate) skipped: Vec<SkippedRow>,
    /// The newest timestamp of the records, in milliseconds since 1970; 0 if the source has no timestamps.
    pub(crate) newest_ms: u64,
    /// Size of the buffer.
    pub(crate) bytes: u64,
    /// Number of bytes that did not arrive, because the consumer had them.
    pub(crate) omitted_bytes: u64,
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
    /// The last `bytes` bytes of a piece have arrived, or were omitted. Contains the complete piece.
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
    /// The rows that the worker may omit.
    cached: Option<Arc<CachedRows>>,
}

#[derive(Debug)]
struct OpenPiece {
    header: PieceHeader,
    buffer: Option<ReceiveBuffer>,
    /// Number of received bytes.
    received: u64,
    /// Inserts omitted rows.
    completer: Option<BatchCompleter>,
}

impl OpenPiece {
    /// Number of bytes in the chunks of the piece.
    fn sent_bytes(&self) -> u64 {
        let omitted = self.header.omitted_rows.as_ref();
        omitted.map_or(self.header.batch.total_bytes, |omitted| omitted.sent_bytes)
    }
}

impl PieceReader {
    /// Creates a reader. `cached` are the rows of the fetch that the worker may omit.
    pub(crate) fn new(pool: Arc<ReceivePool>, cached: Option<Arc<CachedRows>>) -> Self {
        Self { pool, schema: None, open: None, cached }
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
        let completer = self.completer(&header)?;
        if bytes == 0 {
            return Ok(FrameEvent::Piece { bytes: 0, piece: self.decode(header, &Bytes::new())? });
        }
        self.open = Some(OpenPiece { header, buffer: None, received: 0, completer });
        Ok(FrameEvent::PieceOpened(bytes))
    }

    /// Returns a completer for a piece with omitted rows.
    fn completer(&self, header: &PieceHeader) -> Result<Option<BatchCompleter>, String> {
        let Some(omitted) = &header.omitted_rows else { return Ok(None) };
        let total_bytes = header.batch.total_bytes;
        if omitted.sent_bytes > total_bytes {
            return Err("the piece has omitted rows, but is not smaller than the batch".to_owned());
        }
        let row_bytes = |feature| self.cached.as_ref()?.row_bytes(feature);
        BatchCompleter::new(omitted, total_bytes, row_bytes).map(Some)
    }

    fn on_chunk(&mut self, offset: u64, data: Bytes) -> Result<FrameEvent, String> {
        let Some(mut open) = self.open.take() else {
            return Err("a chunk arrived before the header of its piece".to_owned());
        };
        let (bytes, total, sent) = (data.len() as u64, open.header.batch.total_bytes, open.sent_bytes());
        let received = open.received;
        if offset != received || received + bytes > sent {
            return Err(format!(
                "a chunk of {bytes} bytes has offset {offset}, but {received} of {sent} bytes of the piece have arrived"
            ));
        }
        open.received += bytes;
        let is_aligned = (data.as_ptr() as usize).is_multiple_of(ALIGNMENT_BYTES);
        if open.completer.is_none() && bytes == total && is_aligned && !self.pool.is_pinned() {
            return Ok(FrameEvent::Piece { bytes, piece: self.decode(open.header, &data)? });
        }
        let size = usize::try_from(total).map_err(|_| "the piece is larger than the address space")?;
        let buffer = open.buffer.get_or_insert_with(|| self.pool.acquire(size));
        let is_appended = match &mut open.completer {
            None => buffer.append(&data),
            Some(completer) => {
                let cached_row = |feature, row| self.cached.as_ref()?.row(feature, row);
                let mut is_appended = true;
                completer.push(&data, cached_row, |bytes| is_appended &= buffer.append(bytes))?;
                is_appended
            }
        };
        if !is_appended {
            return Err("the chunks contain more bytes than the piece".to_owned());
        }
        if received + bytes < sent {
            self.open = Some(open);
            return Ok(FrameEvent::Bytes(bytes));
        }
        let whole = open.buffer.take().map(ReceiveBuffer::freeze).unwrap_or_default();
        let piece = self.decode(open.header, &whole)?;
        let omitted_bytes = piece.payload.omitted_bytes;
        if omitted_bytes > 0 {
            counter!(FEATURE_CACHE_SAVED_BYTES_TOTAL).increment(omitted_bytes);
        }
        Ok(FrameEvent::Piece { bytes: bytes + omitted_bytes, piece })
    }

    fn decode(&self, header: PieceHeader, data: &Bytes) -> Result<ReadPiece, String> {
        let schema = self.schema.as_ref().ok_or("a piece arrived before the schema")?;
        let records = decode_batch(schema, &header.batch, data)?;
        let newest_ms = header.newest_ms.unwrap_or(0);
        let (rows, is_indivisible) = (header.rows, header.indivisible);
        let PieceHeader {
            start: from,
            end: to,
            kept_offsets: kept,
            row_ids,
            skipped,
            omitted_rows,
            batch,
            ..
        } = header;
        let (kept_offsets, bytes) = (kept.clone(), batch.total_bytes);
        let omitted_bytes = omitted_rows.map_or(0, |omitted| bytes.saturating_sub(omitted.sent_bytes));
        let payload = PieceData {
            records,
            rows,
            is_indivisible,
            row_ids,
            kept: kept_offsets,
            skipped,
            newest_ms,
            bytes,
            omitted_bytes,
        };
        Ok(ReadPiece { from, to, kept, payload: Arc::new(payload) })
    }
}

fn check_header(header: &PieceHeader) -> Result<(), String> {
    let PieceHeader { start: from, end: to, rows, .. } = *header;
    let kept = header.kept_offsets.as_ref().map_or(to.saturating_sub(from), |kept| kept.len() as u32);
    if from > to || header.batch_rows() != header.batch.rows || rows != kept {
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

#[cfg(test)]
mod tests;
