//! The services: what a coordinator and a worker answer. Callers hold the trait; whether it is local or behind gRPC
//! does not matter to them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;
use futures::stream::BoxStream;

use crate::batch::BatchLayout;

/// What a coordinator answers.
///
/// Every method refuses with [`ServiceError`]. Kind `Unavailable` from a remote coordinator may mean that the request
/// arrived all the same: reports are complete and repeatable, and opening or cancelling a job twice is the same as
/// once, so trying again is always right.
#[async_trait]
pub trait CoordinatorService: Send + Sync {
    /// Opens a job, or joins the one that has the same name and spec.
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError>;

    /// Joins the open job that has the same name and spec, and opens none; `Denied` where there is none. Only a coordinator
    /// itself can decide that, so others refuse.
    async fn join_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let message = format!(
            "job `{}` cannot be joined here without being opened; ask the coordinator itself",
            spec.name
        );
        Err(ServiceError::new(ServiceErrorKind::Denied, message))
    }

    /// Ends a job; nothing more of it is computed.
    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError>;

    /// Gives the datasets of a job's mix other weights: one for each, relative to each other. They hold from behind everything that was
    /// handed out on, and the answer tells where that is.
    async fn set_weights(&self, job: JobId, _weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        let message = format!("the mix of job {job} cannot be changed here; ask the coordinator itself");
        Err(ServiceError::new(ServiceErrorKind::Invalid, message))
    }

    /// What a worker needs to work on the job; `Unavailable` until the dataset is known.
    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError>;

    /// How the job stands.
    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError>;

    /// How every known job stands.
    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError>;

    /// The cluster at this moment: jobs, workers, and what the planner says.
    async fn cluster(&self) -> Result<ClusterView, ServiceError>;

    /// The job's dataset; `Unavailable` until it is known.
    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError>;

    /// Takes a worker's report. Answers when the worker's plan differs from the one it has seen, or after about half
    /// a second.
    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError>;

    /// Takes a consumer's report. Answers when the consumer's plan differs from the one it has seen, or after about
    /// half a second.
    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError>;

    /// Where all consumers of a job stand at a step. Answers once they have said so, or after about half a second with what is
    /// known.
    async fn places(&self, job: JobId, _step: StepId) -> Result<GroupPositions, ServiceError> {
        let message =
            format!("where the consumers of job {job} stand is not known here; ask the coordinator itself");
        Err(ServiceError::new(ServiceErrorKind::Invalid, message))
    }
}

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

/// What a coordinator answers whoever adds and removes coordinators. One that follows another refuses, and says whom.
#[async_trait]
pub trait MembersService: Send + Sync {
    /// All coordinators.
    async fn members(&self) -> Result<Vec<MemberStatus>, ServiceError>;

    /// Adds the coordinator that listens at `url`; answers once it votes.
    async fn add_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError>;

    /// Removes the coordinator at `url`, which need not run any more.
    async fn remove_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError>;
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
