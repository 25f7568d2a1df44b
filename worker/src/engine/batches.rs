//! The interface that turns the finished chunks of a group into pieces.
//!
//! A plain batch belongs to one stream: each group becomes one piece of its split (`assemble.rs`). Coordinated batches
//! are built for all streams together: each group is a whole round, and becomes pieces of every stream (`round.rs`).

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

/// Provides output buffers for the chunks of one group, and assembles the chunks into pieces.
pub(super) trait BatchAssembler: Send {
    /// Returns the parts of the group's buffer that the operators of the next chunk write to.
    fn chunk_buffers(&mut self, job: &JobContext, rows: usize) -> OutputBuffers;

    /// Assembles the pieces of all streams that the group has rows for.
    ///
    /// # Errors
    /// Under `on_error: fail`, returns an error message that names the first failed row.
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
    /// Offsets of the group in the split.
    pub(super) offsets: Range<u32>,
    pub(super) rows: Arc<Vec<RowRef>>,
    pub(super) read_failures: GroupFailures,
}

impl GroupRows {
    pub(super) fn named(&self) -> NamedRows<'_> {
        NamedRows { manifest: &self.job.compiled.manifest, rows: &self.rows }
    }
}
