//! Finished pieces: the rows of one group for one stream, encoded in one buffer.

use std::sync::Arc;

use bytes::Bytes;
use feedline_proto::services::PieceHeader;

use super::job::JobContext;
use super::piece_features::PieceFeatures;
use super::trace::QueuedRows;

/// A finished piece of a split.
#[derive(Debug)]
pub(crate) struct FinishedPiece {
    pub(crate) header: PieceHeader,
    pub(crate) data: Bytes,
    /// The columns whose rows a consumer may have. `None` if the batch is not a sampled graph.
    pub(crate) features: Option<PieceFeatures>,
    /// Measures the time until the consumer receives the piece.
    pub(super) _queued: Option<QueuedRows>,
}

/// The pieces of one group for one stream, in order.
#[derive(Debug)]
pub(crate) struct StreamPieces {
    pub(crate) stream: u32,
    pub(crate) pieces: Vec<Arc<FinishedPiece>>,
}

/// The result of looking up the next piece of a split.
pub(crate) enum PieceLookup {
    /// The job, and the piece that contains the requested row.
    Piece(Arc<JobContext>, Arc<FinishedPiece>),
    /// The requested row failed, so the split ends before that row. Contains the error message.
    Failed(String),
    /// All rows of the split have been fetched.
    End(Arc<JobContext>),
    /// The piece is not finished. The caller waits until the split changes.
    Wait,
    /// This worker has no lease for the split, or a newer fetch has replaced this fetch.
    Unknown,
}
