//! The interface that turns the finished chunks of a group into pieces.
//!
//! A plain batch belongs to one stream: each group becomes one piece of its split (`assemble.rs`). Coordinated batches
//! are built for all streams together: each group is a whole round, and becomes pieces of every stream (`round.rs`). A sampled
//! graph is one record: each group is one batch, and becomes one indivisible piece (`graph_batches.rs`). Threads do not wait for a
//! disk or a store: a batch that needs rows of features from there is sampled first, and encoded when they have been read.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::layout::SplitRef;
use feedline_data::order::RowRef;
use feedline_data::segments::PADDING_ROW_ID;
use feedline_operators::OutputBuffers;

use super::chunk::WorkChunk;
use super::failures::{GroupFailures, NamedRows};
use super::job::{GroupBlocks, JobContext};
use super::piece::StreamPieces;
use super::progress::SplitProgress;
use super::slab::SlabPool;

/// Provides output buffers for the chunks of one group, and assembles the chunks into pieces.
pub(super) trait BatchAssembler: Send {
    /// Returns the parts of the group's buffer that the operators of the next chunk write to.
    fn chunk_buffers(&mut self, job: &JobContext, rows: usize) -> OutputBuffers;

    /// Assembles the pieces of all streams that the group has rows for.
    ///
    /// # Errors
    /// Under `on_error: fail`, returns an error message that names the first failed row.
    fn assemble(self: Box<Self>, group: &GroupRows, chunks: Vec<WorkChunk>) -> Result<Assembly, String>;
}

/// The result of assembling the chunks of a group.
pub(super) enum Assembly {
    /// The pieces of all streams that the group has rows for.
    Finished(Vec<StreamPieces>),
    /// A batch that needs rows of features which are not in memory.
    AwaitsRows(Box<dyn AwaitingBatch>),
}

/// A batch that is finished when rows of features have been read.
#[async_trait]
pub(super) trait AwaitingBatch: Send {
    /// Reads the rows. Reports progress while it waits.
    ///
    /// # Errors
    /// Returns a message if the rows cannot be read.
    async fn fetch(&mut self, progress: &SplitProgress) -> Result<(), String>;

    /// Builds the pieces of the group.
    ///
    /// # Errors
    /// Returns a message if the batch is too large, or rows are missing.
    fn finish(self: Box<Self>, group: &GroupRows) -> Result<Vec<StreamPieces>, String>;
}

/// The rows of a group.
pub(super) struct GroupRows {
    pub(super) job: Arc<JobContext>,
    pub(super) slabs: Arc<SlabPool>,
    pub(super) split: SplitRef,
    /// Offsets of the group in the split.
    pub(super) offsets: Range<u32>,
    /// The rows. The offsets after them are padding.
    pub(super) rows: Arc<Vec<RowRef>>,
    pub(super) blocks: GroupBlocks,
    pub(super) read_failures: GroupFailures,
    /// The newest timestamp of the records that were read, in milliseconds since 1970.
    pub(super) newest_ms: Option<u64>,
}

impl GroupRows {
    /// The id of the row at each offset.
    pub(super) fn row_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.rows.iter().map(|row| row.row_id).collect();
        ids.resize(self.offsets.len(), PADDING_ROW_ID);
        ids
    }

    pub(super) fn named(&self) -> NamedRows<'_> {
        NamedRows { blocks: &self.blocks, rows: &self.rows }
    }
}
