//! The features in a finished piece, and pieces without the rows that a consumer has.

use std::sync::Arc;

use bytes::Bytes;
use feedline_data::pipeline::GraphColumnContent;
use feedline_proto::batch::{FeatureColumn, omit_rows};
use feedline_proto::services::{CachedFeature, PieceHeader};

use super::job::JobContext;
use super::slab::SlabPool;

/// Size of the position of a node.
const ID_BYTES: usize = size_of::<u32>();

/// The features of nodes in a piece.
#[derive(Debug)]
pub(crate) struct PieceFeatures {
    /// The batch, and then the positions of its nodes in stored order.
    buffer: Bytes,
    /// The columns in the order of the buffer.
    columns: Vec<PieceColumn>,
    /// The pool for pieces without some of the rows.
    slabs: Arc<SlabPool>,
}

/// A column with a feature of nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceColumn {
    /// Index in the plan of the batches.
    pub(super) column: usize,
    /// Offset of the first row in the buffer.
    pub(super) values_at: usize,
    pub(super) row_bytes: usize,
    pub(super) rows: usize,
    /// Offset of the positions in stored order of the nodes.
    pub(super) ids_at: usize,
}

impl PieceFeatures {
    /// Returns the features of a piece, or `None` if there are none.
    pub(super) fn new(buffer: Bytes, columns: Vec<PieceColumn>, slabs: &Arc<SlabPool>) -> Option<Self> {
        (!columns.is_empty()).then(|| Self { buffer, columns, slabs: Arc::clone(slabs) })
    }

    /// Copies a piece without the rows that the consumer has. Returns `None` if the consumer has other features, or the piece would not
    /// become smaller. The copy of a large piece takes several milliseconds.
    pub(crate) fn without_rows(
        &self,
        job: &JobContext,
        header: &PieceHeader,
        cached: &[CachedFeature],
    ) -> Option<(PieceHeader, Bytes)> {
        let Self { buffer, columns, slabs } = self;
        let batch = buffer.get(..usize::try_from(header.batch.total_bytes).ok()?)?;
        let columns: Vec<FeatureColumn<'_>> = columns
            .iter()
            .filter_map(|column| {
                let index = find_cached(job, column, cached)?;
                let ids = column.ids_at..column.ids_at.checked_add(column.rows.checked_mul(ID_BYTES)?)?;
                Some(FeatureColumn {
                    feature: u32::try_from(index).ok()?,
                    values_at: column.values_at,
                    row_bytes: column.row_bytes,
                    ids: buffer.get(ids)?,
                    cached_rows: cached[index].rows,
                })
            })
            .collect();
        let mut reservation = None;
        let allocate = |bytes| {
            let (mut slab, reserved) = slabs.take(bytes);
            slab.clear();
            reservation = Some(reserved);
            slab
        };
        let (omitted, data) = omit_rows(batch, &columns, allocate)?;
        let data = SlabPool::finish(data, reservation?);
        let header = PieceHeader { omitted_rows: Some(omitted), ..header.clone() };
        Some((header, data))
    }
}

/// Returns the index of the cached feature that is equal to the feature of a column.
fn find_cached(job: &JobContext, column: &PieceColumn, cached: &[CachedFeature]) -> Option<usize> {
    let planned = job.compiled.graph.as_ref()?.plan.columns.get(column.column)?;
    let GraphColumnContent::NodeFeature { node_type, feature } = planned.content else { return None };
    let summary = job.compiled.details.dataset.graph.as_ref()?;
    let content = summary.nodes.get(node_type)?.features.get(feature)?.content;
    cached.iter().position(|cached| {
        cached.column == planned.name
            && cached.content == content
            && usize::try_from(cached.row_bytes) == Ok(column.row_bytes)
    })
}
