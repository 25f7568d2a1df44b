//! The peer service of a coordinator and the service of a worker. Callers hold a trait object, local or remote. The table in
//! `rpc` generates the service of a coordinator for clients.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::stream::BoxStream;

use crate::batch::{BatchLayout, OmittedRows};
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

    /// Stores the latest index of a source durably, under the key of the source. `in_use` contains references to the other
    /// indexes of the source that jobs use. The callee may delete all others.
    async fn store_index(
        &self,
        key: &str,
        manifest: Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), ServiceError>;

    /// Returns a stored index. `reference` is its id, or a fingerprint: see
    /// [`index_reference`](feedline_data::manifest::DatasetSummary::index_reference).
    async fn load_index(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError>;
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
    /// returned stream ends the fetch immediately. The end of `requests` means that no further credit follows. If the first
    /// request is [`FetchRequest::Features`], the stream contains rows of a feature instead.
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError>;

    /// Returns rows of a feature that the worker holds for a job, in the order of the request and without padding between them.
    async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        let message = format!("this worker holds no features of job {}", request.job);
        Err(ServiceError::new(ServiceErrorKind::NotFound, message))
    }

    /// Whether the last fetch of this caller crossed a network.
    fn is_remote(&self) -> bool {
        false
    }
}

/// Maximum number of rows of one [`GatherRequest`].
pub const MAX_GATHERED_ROWS: usize = 1 << 19;
/// Maximum size in bytes of the rows of one [`GatherRequest`].
pub const MAX_GATHERED_BYTES: u64 = 64 << 20;

/// The rows of a feature that a worker requests from another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatherRequest {
    /// The job whose batches contain the feature.
    pub job: JobId,
    /// The content hash of the feature of a node type.
    pub feature: GraphHash,
    /// The size of a stored row in bytes.
    pub row_bytes: u32,
    /// The rows, in the order of the response.
    pub rows: Vec<u32>,
    /// The ticket of the requesting worker; empty in a cluster without a secret.
    pub ticket: String,
}

impl GatherRequest {
    /// The size of the requested rows in bytes.
    pub fn response_bytes(&self) -> u64 {
        (self.rows.len() as u64).saturating_mul(u64::from(self.row_bytes))
    }

    /// Checks that the request does not exceed the limits of one request.
    ///
    /// # Errors
    /// Returns `Invalid` if it requests more rows or bytes.
    pub fn check_size(&self) -> Result<(), ServiceError> {
        let (rows, bytes) = (self.rows.len(), self.response_bytes());
        if rows <= MAX_GATHERED_ROWS && bytes <= MAX_GATHERED_BYTES {
            return Ok(());
        }
        let message = format!(
            "a request for {rows} rows with {bytes} bytes exceeds the limit of {MAX_GATHERED_ROWS} rows and {MAX_GATHERED_BYTES} bytes; \
             divide it into several requests"
        );
        Err(ServiceError::new(ServiceErrorKind::Invalid, message))
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
    /// Requests rows of a feature. It is the only message.
    Features(FeatureRowsRequest),
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
    /// The rows of features that the consumer has. The worker may omit them from pieces.
    pub cached_features: Vec<CachedFeature>,
}

/// The first rows of a feature, which a consumer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFeature {
    /// Name of the column of the feature in batches.
    pub column: String,
    /// Hash of the content of the feature.
    pub content: GraphHash,
    /// Number of rows, which are those of the first nodes in stored order.
    pub rows: u32,
    /// Size of a row in batches.
    pub row_bytes: u32,
}

/// Requests the first rows of a node feature as they are stored. The response consists of chunks and [`Frame::End`]. The first 8
/// bytes are the size of the file of the feature. The hash of each block of the file follows, with 8 bytes each, and then the blocks
/// that contain the rows. All numbers are in little-endian order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureRowsRequest {
    /// The job, whose graph has the feature.
    pub job: JobId,
    /// Ticket of the consumer; empty in a cluster without a secret.
    pub ticket: String,
    /// Hash of the content of the feature.
    pub content: GraphHash,
    /// Number of rows.
    pub rows: u32,
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
    /// Number of output rows; equals `batch.rows` if the piece is divisible.
    pub rows: u32,
    /// Offsets of the output rows in the split; `None` if operators removed no rows.
    pub kept_offsets: Option<Vec<u32>>,
    /// Ids of all input rows from `start` to `end`, in order; present in a job with audit.
    pub row_ids: Option<Vec<u64>>,
    /// Rows that failed, and that the worker skipped or replaced.
    pub skipped: Vec<SkippedRow>,
    /// The newest timestamp of the records that the rows come from, in milliseconds since 1970; `None` if the source has no
    /// timestamps.
    pub newest_ms: Option<u64>,
    /// Whether the piece is one batch that cannot be divided, such as a sampled graph. Its output rows are then one row of lists, or
    /// no row if the piece has no output rows.
    pub indivisible: bool,
    /// The rows of features that the chunks of the piece do not contain. `batch` is the layout of the complete batch.
    pub omitted_rows: Option<OmittedRows>,
    /// Positions of the columns in the buffer of the piece.
    pub batch: BatchLayout,
}

impl PieceHeader {
    /// The number of rows that the layout of the batch must have.
    pub fn batch_rows(&self) -> u32 {
        if self.indivisible { self.rows.min(1) } else { self.rows }
    }
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
