//! The batch policy of a job: how the finished chunks of a group become pieces.
//!
//! Plain batches belong to one stream: a group becomes one piece of its split (`assemble.rs`). Coordinated batches are
//! made for all streams together: a group is a whole round and becomes pieces of every stream (`round.rs`).

use std::ops::Range;
use std::sync::Arc;

use feedline_data::layout::SplitRef;
use feedline_data::order::RowRef;
use feedline_operators::OutputBuffers;

use super::chunk::WorkChunk;
use super::failures::{GroupFailures, NamedRows};
use super::job::JobContext;
use super::piece::StreamPieces;
use super::slab::SlabPool;

/// Collects the chunks of one group in buffers, and makes pieces of them.
pub(super) trait BatchAssembler: Send {
    /// The parts of the group's buffer that operators of the next chunk write to.
    fn chunk_buffers(&mut self, job: &JobContext, rows: usize) -> OutputBuffers;

    /// Makes the pieces of all streams that the group serves.
    ///
    /// # Errors
    /// Under `on_error: fail`, returns a message about the first row that failed.
    fn assemble(
        self: Box<Self>,
        group: &GroupRows,
        chunks: Vec<WorkChunk>,
    ) -> Result<Vec<StreamPieces>, String>;
}

/// The rows of a group.
pub(super) struct GroupRows {
    pub(super) job: Arc<JobContext>,
    pub(super) slabs: Arc<SlabPool>,
    pub(super) split: SplitRef,
    /// Offsets in the split.
    pub(super) offsets: Range<u32>,
    pub(super) rows: Arc<Vec<RowRef>>,
    pub(super) read_failures: GroupFailures,
}

impl GroupRows {
    pub(super) fn named(&self) -> NamedRows<'_> {
        NamedRows { manifest: &self.job.compiled.manifest, rows: &self.rows }
    }
}
