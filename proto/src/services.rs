//! The peer service of a coordinator and the service of a worker. Callers hold a trait object, local or remote. The table in
//! `rpc` generates the service of a coordinator for clients.

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

/// The service of a coordinator for other coordinators.
#[async_trait]
pub trait PeerService: Send + Sync {
    /// Sends the identity and address of the caller and returns those of the callee.
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError>;

    /// Adds the caller, which has an empty disk, to the cluster. Only the leader accepts it. The caller repeats the request until
    /// it receives its state.
    async fn join(&self, from: MemberInfo) -> Result<(), ServiceError>;

    /// Delivers messages that `feedline_raft` has encoded, with the identity and address of the caller.
    async fn deliver(&self, sender: MemberInfo, messages: Vec<Bytes>) -> Result<(), ServiceError>;

    /// Stores the index of a dataset durably, under the key of its source.
    async fn store_index(&self, key: &str, manifest: Arc<Manifest>) -> Result<(), ServiceError>;

    /// Returns a stored index.
    async fn load_index(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError>;
}

/// Identity and address of a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberInfo {
    /// Id of the coordinator.
    pub id: u64,
    /// Whether the coordinator is a member of a cluster.
    pub has_state: bool,
    /// URL at which other coordinators reach the coordinator; empty if it states none.
    pub url: String,
    /// Increases with each start of the coordinator. An address of an earlier start does not replace that of a later one.
    pub incarnation: u64,
}

/// State of a coordinator, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Id of the coordinator.
    pub id: String,
    /// Address of the coordinator.
    pub url: String,
    /// Whether the coordinator is the leader.
    pub is_leader: bool,
    /// Whether the coordinator votes. A new member is a learner first.
    pub is_voter: bool,
    /// Whether the coordinator has responded recently.
    pub is_reachable: bool,
    /// Number of the leader's log entries that the coordinator has not confirmed.
    pub unconfirmed_entries: u64,
}

/// The service of a worker.
#[async_trait]
pub trait WorkerService: Send + Sync {
    /// Streams the pieces of a split. The first request is [`FetchRequest::Open`], the others grant credit. Dropping the
    /// returned stream ends the fetch immediately. The end of `requests` means that no further credit follows.
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError>;

    /// Whether the last fetch of this caller crossed a network.
    fn is_remote(&self) -> bool {
        false
    }
}

/// A message from a consumer to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchRequest {
    /// Opens the fetch. It is the first message, and is sent once.
    Open(FetchOpen),
    /// Grants credit to the worker.
    Credit {
        /// Number of additional chunk bytes that the worker may send.
        bytes: u64,
    },
}

/// The rows that a fetch requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchOpen {
    /// The job.
    pub job: JobId,
    /// The split.
    pub split: SplitRef,
    /// Offset of the first requested row in the split.
    pub start_offset: u32,
    /// Number of chunk bytes that the worker may send before it receives further credit.
    pub credit_bytes: u64,
    /// Ticket of the consumer; empty in a cluster without a secret.
    pub ticket: String,
}

/// A message from a worker to a consumer. A fetch returns `Schema`, then `Piece` and chunks for each piece, then `End`.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Columns of all pieces. It is the first message, and is sent once.
    Schema(SchemaRef),
    /// Starts a piece. Its chunks follow in order and contain exactly `batch.total_bytes`.
    Piece(PieceHeader),
    /// Bytes of the current piece.
    Chunk {
        /// Offset of the first byte in the buffer of the piece.
        offset: u64,
        /// The bytes. A worker in the same process may send a whole piece as one chunk.
        data: Bytes,
    },
    /// The worker is computing the next piece. This message is sent between pieces, and the client continues to wait.
    Working,
    /// The one-sentence error of a failed row in a pipeline with `on_error: fail`. It is the last message.
    Failed(String),
    /// The split is complete. It is the last message.
    End,
}

/// Header of a piece, the output of consecutive rows of a split.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PieceHeader {
    /// Offset of the first input row in the split.
    pub start: u32,
    /// Offset in the split just after the last input row.
    pub end: u32,
    /// Number of output rows; equals `batch.rows`.
    pub rows: u32,
    /// Offsets of the output rows in the split; `None` if operators removed no rows.
    pub kept_offsets: Option<Vec<u32>>,
    /// Ids of all input rows from `start` to `end`, in order; present in a job with audit.
    pub row_ids: Option<Vec<u64>>,
    /// Rows that failed, and that the worker skipped or replaced.
    pub skipped: Vec<SkippedRow>,
    /// Positions of the columns in the buffer of the piece.
    pub batch: BatchLayout,
}

/// A row that a worker could not read or process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRow {
    /// Row id, which is the index of the row in the dataset.
    pub row_id: u64,
    /// URL of the shard.
    pub shard: String,
    /// Byte offset of the row in the shard; the row number in columnar formats.
    pub offset: u64,
    /// The reason, in one clause.
    pub reason: String,
}
