//! The services between coordinators and of a worker. Callers hold the trait; whether it is local or remote does not matter
//! to them. The service of a coordinator is generated from the table in `rpc`.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use futures::stream::BoxStream;

use crate::batch::BatchLayout;
pub use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

/// What a coordinator answers other coordinators.
#[async_trait]
pub trait PeerService: Send + Sync {
    /// Tells who asks, and answers who it is itself.
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError>;

    /// Takes messages of `feedline_raft`, in its form.
    async fn deliver(&self, messages: Vec<Bytes>) -> Result<(), ServiceError>;

    /// Keeps a dataset's index under the key of its source, durably.
    async fn keep_index(&self, key: &str, manifest: Arc<Manifest>) -> Result<(), ServiceError>;

    /// The index that was kept.
    async fn index(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError>;
}

/// Who a coordinator is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its id among coordinators.
    pub id: u64,
    /// Whether it is part of a cluster.
    pub has_state: bool,
}

/// A coordinator as the one that leads sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub id: String,
    /// Its address.
    pub url: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it votes; one that was just added learns first.
    pub votes: bool,
    /// Whether it has answered lately.
    pub is_heard: bool,
    /// Entries of the leader's log that it has not confirmed.
    pub lacks: u64,
}

/// What a worker answers.
#[async_trait]
pub trait WorkerService: Send + Sync {
    /// Streams a split's pieces. The first request is [`FetchRequest::Open`], the others are credit. Dropping the
    /// returned stream ends the fetch at once; the end of `requests` only means that no further credit comes.
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError>;

    /// Whether what it gives to this caller crosses a network, as far as the last fetch has told.
    fn is_remote(&self) -> bool {
        false
    }
}

/// What a consumer sends while fetching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchRequest {
    /// Which rows; comes first and once.
    Open(FetchOpen),
    /// Allows the worker to send more.
    Credit {
        /// Further bytes of chunks that may be sent.
        bytes: u64,
    },
}

/// Which rows a fetch wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchOpen {
    /// The job.
    pub job: JobId,
    /// The split.
    pub split: SplitRef,
    /// Offset in the split of the first row wanted.
    pub from: u32,
    /// Bytes of chunks that may be sent before further credit comes.
    pub credit_bytes: u64,
    /// What the coordinator gave the consumer; empty where workers do not ask.
    pub ticket: String,
}

/// What a worker sends while a split is fetched: `Schema`, then for each piece `Piece` and its chunks, then `End`.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Columns of every piece; first and once.
    Schema(SchemaRef),
    /// Opens the next piece. Its chunks follow and cover `batch.total_bytes` exactly, in order.
    Piece(PieceHeader),
    /// Bytes of the present piece.
    Chunk {
        /// Place of the first byte in the piece's buffer.
        offset: u64,
        /// The bytes. A local worker may send a whole piece as one chunk.
        data: Bytes,
    },
    /// Nothing is ready, but the worker goes on with the job: waiting is of use. Never inside a piece.
    Working,
    /// A row failed under `on_error: fail`: one sentence. Nothing follows.
    Failed(String),
    /// The split is complete. Nothing follows.
    End,
}

/// A piece: the output of consecutive rows of a split.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PieceHeader {
    /// Offset in the split of the first input row.
    pub from: u32,
    /// Offset in the split after the last input row.
    pub to: u32,
    /// Rows that remain; equals `batch.rows`.
    pub rows: u32,
    /// Offsets in the split of the rows that remain, when operators removed some; `None` when all remain.
    pub kept: Option<Vec<u32>>,
    /// Audit: ids of every input row from `from` to `to`, in order.
    pub row_ids: Option<Vec<u64>>,
    /// Rows that failed and were skipped or replaced.
    pub skipped: Vec<SkippedRow>,
    /// Where the columns lie in the piece's buffer.
    pub batch: BatchLayout,
}

/// A row that could not be read or processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRow {
    /// Its id: its place in the dataset.
    pub row_id: u64,
    /// URL of its shard.
    pub shard: String,
    /// Byte offset of the row in the shard; the row number in columnar formats.
    pub offset: u64,
    /// What is wrong, in one clause.
    pub reason: String,
}
