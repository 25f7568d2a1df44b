//! Fetch requests and frames.

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use feedline_data::ids::JobId;

use super::{WireError, all, mirror, required};
use crate::batch::BatchLayout;
use crate::services::{FetchOpen, FetchRequest, Frame, PieceHeader, SkippedRow};
use crate::wire;

mirror!(SkippedRow, wire::SkippedRow, { row_id, shard, offset, reason });

impl From<FetchRequest> for wire::FetchRequest {
    fn from(request: FetchRequest) -> Self {
        use wire::fetch_request::Request;
        let request = match request {
            FetchRequest::Open(open) => Request::Open(wire::FetchOpen {
                job: open.job.0,
                split: Some(open.split.into()),
                from: open.from,
                credit_bytes: open.credit_bytes,
                memory: None,
                lz4: false,
                ticket: open.ticket,
            }),
            FetchRequest::Credit { bytes } => Request::CreditBytes(bytes),
        };
        Self { request: Some(request) }
    }
}

impl TryFrom<wire::FetchRequest> for FetchRequest {
    type Error = WireError;

    fn try_from(request: wire::FetchRequest) -> Result<Self, WireError> {
        use wire::fetch_request::Request;
        Ok(match required(request.request, "fetch.request")? {
            Request::Open(open) => Self::Open(FetchOpen {
                job: JobId(open.job),
                split: required(open.split, "fetch.split")?.into(),
                from: open.from,
                credit_bytes: open.credit_bytes,
                ticket: open.ticket,
            }),
            Request::CreditBytes(bytes) => Self::Credit { bytes },
        })
    }
}

impl TryFrom<Frame> for wire::FetchFrame {
    type Error = WireError;

    fn try_from(frame: Frame) -> Result<Self, WireError> {
        use wire::fetch_frame::Frame as Wire;
        let frame = match frame {
            Frame::Schema(schema) => Wire::Schema(write_schema(&schema)?),
            Frame::Piece(piece) => Wire::Piece(piece.into()),
            Frame::Chunk { offset, data } => Wire::Chunk(wire::Chunk { offset, data }),
            Frame::Working => Wire::Working(wire::Working {}),
            Frame::Failed(message) => Wire::Failed(message),
            Frame::End => Wire::End(wire::End {}),
        };
        Ok(Self { frame: Some(frame) })
    }
}

impl TryFrom<wire::FetchFrame> for Frame {
    type Error = WireError;

    fn try_from(frame: wire::FetchFrame) -> Result<Self, WireError> {
        use wire::fetch_frame::Frame as Wire;
        Ok(match required(frame.frame, "fetch.frame")? {
            Wire::Schema(bytes) => Self::Schema(read_schema(&bytes)?),
            Wire::Piece(piece) => Self::Piece(piece.try_into()?),
            Wire::Chunk(chunk) => Self::Chunk { offset: chunk.offset, data: chunk.data },
            Wire::Working(_) => Self::Working,
            Wire::Failed(message) => Self::Failed(message),
            Wire::End(_) => Self::End,
            Wire::Packed(_) => return Err(WireError("a chunk came packed that nobody asked for".to_owned())),
            Wire::Lent(_) => {
                return Err(WireError("a piece was lent that nobody asked to borrow".to_owned()));
            }
        })
    }
}

/// Begins a message of Arrow's streaming format, before its length.
const CONTINUATION: [u8; 4] = [0xff; 4];

fn write_schema(schema: &SchemaRef) -> Result<Bytes, WireError> {
    let unwritable = |error| WireError(format!("the schema of the rows cannot be sent: {error}"));
    let mut bytes = Vec::new();
    // The writer begins with the schema; no batch follows.
    StreamWriter::try_new(&mut bytes, schema).map_err(unwritable)?;
    Ok(bytes.into())
}

fn read_schema(bytes: &[u8]) -> Result<SchemaRef, WireError> {
    // The reader makes room for as many bytes as are told, before it looks for them.
    let message = bytes.strip_prefix(&CONTINUATION).unwrap_or(bytes);
    let told = message.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    if told > message.len() {
        let there = message.len();
        return Err(WireError(format!(
            "the schema of the rows is cut short: {told} bytes are told and {there} there"
        )));
    }
    let reader = StreamReader::try_new(bytes, None)
        .map_err(|error| WireError(format!("the schema of the rows is damaged: {error}")))?;
    Ok(reader.schema())
}

impl From<PieceHeader> for wire::Piece {
    fn from(piece: PieceHeader) -> Self {
        Self {
            from: piece.from,
            to: piece.to,
            rows: piece.rows,
            kept: piece.kept.map(|offsets| wire::KeptRows { offsets }),
            row_ids: piece.row_ids.map(|ids| wire::RowIds { ids }),
            skipped: all(piece.skipped),
            batch: Some(piece.batch.into()),
        }
    }
}

impl TryFrom<wire::Piece> for PieceHeader {
    type Error = WireError;

    fn try_from(piece: wire::Piece) -> Result<Self, WireError> {
        Ok(Self {
            from: piece.from,
            to: piece.to,
            rows: piece.rows,
            kept: piece.kept.map(|kept| kept.offsets),
            row_ids: piece.row_ids.map(|row_ids| row_ids.ids),
            skipped: all(piece.skipped),
            batch: required(piece.batch, "piece.batch")?.try_into()?,
        })
    }
}

impl From<BatchLayout> for wire::BatchLayout {
    fn from(layout: BatchLayout) -> Self {
        let (node_lengths, node_nulls) = layout.nodes.into_iter().unzip();
        let (buffer_offsets, buffer_lengths) = layout.buffers.into_iter().unzip();
        Self {
            rows: layout.rows,
            total_bytes: layout.total_bytes,
            node_lengths,
            node_nulls,
            buffer_offsets,
            buffer_lengths,
        }
    }
}

impl TryFrom<wire::BatchLayout> for BatchLayout {
    type Error = WireError;

    fn try_from(layout: wire::BatchLayout) -> Result<Self, WireError> {
        let pair = |left: Vec<u64>, right: Vec<u64>| {
            if left.len() != right.len() {
                return Err(WireError("the lists of a batch's layout differ in length".to_owned()));
            }
            Ok(left.into_iter().zip(right).collect())
        };
        Ok(Self {
            rows: layout.rows,
            total_bytes: layout.total_bytes,
            nodes: pair(layout.node_lengths, layout.node_nulls)?,
            buffers: pair(layout.buffer_offsets, layout.buffer_lengths)?,
        })
    }
}
