//! Fetch requests and frames, and requests for rows of features.

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;

use super::{Wire, WireError, field, message, required, wrapper};
use crate::batch::{BatchLayout, OmittedColumn, OmittedRows};
use crate::services::{
    CachedFeature, FeatureRowsRequest, FetchOpen, FetchRequest, Frame, GatherRequest, PieceHeader, SkippedRow,
};
use crate::wire;

message!(SkippedRow, "skipped", { row_id, shard, offset, reason });
message!(PieceHeader, "piece", {
    start, end, rows, kept_offsets, row_ids, skipped, newest_ms, indivisible, omitted_rows, batch,
});
message!(OmittedRows, "omitted_rows", { sent_bytes, columns });
message!(OmittedColumn, "omitted_rows.columns", { feature, values_at, rows });
message!(CachedFeature, "fetch.cached_features", { column, content, rows, row_bytes });
message!(FeatureRowsRequest, "features", { job, ticket, content, rows });
wrapper!(Vec<u32> => RowOffsets { offsets });
wrapper!(Vec<u64> => RowIds { ids });
field!(BatchLayout, BatchLayout);

impl Wire<wire::FetchRequest> for FetchRequest {
    fn into_wire(self) -> wire::FetchRequest {
        use wire::fetch_request::Request;
        let request = match self {
            Self::Open(FetchOpen {
                job,
                split,
                start_offset: from,
                credit_bytes,
                ticket,
                cached_features,
            }) => Request::Open(wire::FetchOpen {
                job: job.into_wire(),
                split: split.into_wire(),
                start_offset: from,
                credit_bytes,
                memory: None,
                lz4: false,
                ticket,
                cached_features: cached_features.into_wire(),
            }),
            Self::Credit { bytes } => Request::CreditBytes(bytes),
            Self::Features(request) => Request::Features(request.into_wire()),
        };
        wire::FetchRequest { request: Some(request) }
    }

    fn from_wire(message: wire::FetchRequest, field: &str) -> Result<Self, WireError> {
        use wire::fetch_request::Request;
        Ok(match required(message.request, field)? {
            Request::Open(wire::FetchOpen {
                job,
                split,
                start_offset: from,
                credit_bytes,
                ticket,
                cached_features,
                ..
            }) => {
                let (job, split) =
                    (Wire::from_wire(job, "fetch.job")?, Wire::from_wire(split, "fetch.split")?);
                let cached_features = Wire::from_wire(cached_features, "fetch.cached_features")?;
                Self::Open(FetchOpen {
                    job,
                    split,
                    start_offset: from,
                    credit_bytes,
                    ticket,
                    cached_features,
                })
            }
            Request::CreditBytes(bytes) => Self::Credit { bytes },
            Request::Features(request) => Self::Features(Wire::from_wire(request, "features")?),
        })
    }
}

/// Rows are numbers of fixed size, so that a decoded request is not larger than its message.
impl Wire<wire::GatherRequest> for GatherRequest {
    fn into_wire(self) -> wire::GatherRequest {
        let rows: Vec<u8> = self.rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        wire::GatherRequest {
            job: self.job.into_wire(),
            feature: self.feature.into_wire(),
            row_bytes: self.row_bytes,
            rows: rows.into(),
            ticket: self.ticket,
        }
    }

    fn from_wire(message: wire::GatherRequest, _: &str) -> Result<Self, WireError> {
        let (rows, rest) = message.rows.as_chunks::<4>();
        if !rest.is_empty() {
            let bytes = message.rows.len();
            return Err(WireError(format!("cannot read `gather.rows`: {bytes} bytes are not whole numbers")));
        }
        Ok(Self {
            job: Wire::from_wire(message.job, "gather.job")?,
            feature: Wire::from_wire(message.feature, "gather.feature")?,
            row_bytes: message.row_bytes,
            rows: rows.iter().map(|row| u32::from_le_bytes(*row)).collect(),
            ticket: message.ticket,
        })
    }
}

impl TryFrom<Frame> for wire::FetchFrame {
    type Error = WireError;

    fn try_from(frame: Frame) -> Result<Self, WireError> {
        use wire::fetch_frame::Frame as Wired;
        let frame = match frame {
            Frame::Schema(schema) => Wired::Schema(write_schema(&schema)?),
            Frame::Piece(piece) => Wired::Piece(piece.into_wire()),
            Frame::Chunk { offset, data } => Wired::Chunk(wire::Chunk { offset, data }),
            Frame::Working => Wired::Working(wire::Empty {}),
            Frame::Failed(message) => Wired::Failed(message),
            Frame::End => Wired::End(wire::Empty {}),
        };
        Ok(Self { frame: Some(frame) })
    }
}

impl TryFrom<wire::FetchFrame> for Frame {
    type Error = WireError;

    fn try_from(frame: wire::FetchFrame) -> Result<Self, WireError> {
        use wire::fetch_frame::Frame as Wired;
        let unexpected = |what: &str| WireError(format!("the worker sent {what}, which was not requested"));
        Ok(match required(frame.frame, "fetch.frame")? {
            Wired::Schema(bytes) => Self::Schema(read_schema(&bytes)?),
            Wired::Piece(piece) => Self::Piece(Wire::from_wire(piece, "fetch.piece")?),
            Wired::Chunk(wire::Chunk { offset, data }) => Self::Chunk { offset, data },
            Wired::Working(_) => Self::Working,
            Wired::Failed(message) => Self::Failed(message),
            Wired::End(_) => Self::End,
            Wired::Packed(_) => return Err(unexpected("a compressed chunk")),
            Wired::Shared(_) => return Err(unexpected("a piece in shared memory")),
        })
    }
}

/// First bytes of a message of the Arrow streaming format, before its length.
const CONTINUATION: [u8; 4] = [0xff; 4];

fn write_schema(schema: &SchemaRef) -> Result<Bytes, WireError> {
    let failed = |error| WireError(format!("cannot encode the row schema: {error}"));
    let mut bytes = Vec::new();
    // The writer writes the schema immediately. No batch follows.
    StreamWriter::try_new(&mut bytes, schema).map_err(failed)?;
    Ok(bytes.into())
}

fn read_schema(bytes: &[u8]) -> Result<SchemaRef, WireError> {
    // The reader allocates the declared length before it looks for the bytes.
    let message = bytes.strip_prefix(&CONTINUATION).unwrap_or(bytes);
    let declared = message.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    if declared > message.len() {
        let present = message.len();
        return Err(WireError(format!(
            "the row schema is truncated: expected {declared} bytes, got {present}"
        )));
    }
    let reader = StreamReader::try_new(bytes, None)
        .map_err(|error| WireError(format!("the row schema is corrupt: {error}")))?;
    Ok(reader.schema())
}

impl Wire<wire::BatchLayout> for BatchLayout {
    fn into_wire(self) -> wire::BatchLayout {
        let Self { rows, total_bytes, nodes, buffers } = self;
        let (node_lengths, node_nulls) = nodes.into_iter().unzip();
        let (buffer_offsets, buffer_lengths) = buffers.into_iter().unzip();
        wire::BatchLayout { rows, total_bytes, node_lengths, node_nulls, buffer_offsets, buffer_lengths }
    }

    fn from_wire(message: wire::BatchLayout, _: &str) -> Result<Self, WireError> {
        let zip = |left: Vec<u64>, right: Vec<u64>| match left.len() == right.len() {
            true => Ok(left.into_iter().zip(right).collect()),
            false => Err(WireError("the lists in a batch layout differ in length".to_owned())),
        };
        Ok(Self {
            rows: message.rows,
            total_bytes: message.total_bytes,
            nodes: zip(message.node_lengths, message.node_nulls)?,
            buffers: zip(message.buffer_offsets, message.buffer_lengths)?,
        })
    }
}
