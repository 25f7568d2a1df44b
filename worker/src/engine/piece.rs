//! A finished piece: the rows of one group for one stream, in one buffer.

use std::sync::Arc;

use bytes::Bytes;
use feedline_proto::services::PieceHeader;

use super::trace::QueuedRows;

/// A finished piece of a split.
#[derive(Debug)]
pub(crate) struct FinishedPiece {
    pub(crate) header: PieceHeader,
    pub(crate) data: Bytes,
    /// Measures the time until the consumer receives the piece.
    pub(super) _queued: Option<QueuedRows>,
}

/// The pieces that one group made for one stream, in order.
#[derive(Debug)]
pub(crate) struct StreamPieces {
    pub(crate) stream: u32,
    pub(crate) pieces: Vec<Arc<FinishedPiece>>,
}
