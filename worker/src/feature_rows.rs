//! Sends rows of features to consumers, which keep them in memory. Consumers have no credentials for the store of a graph, so they
//! receive the rows from a worker that holds the graph.

use arrow::buffer::Buffer;
use bytes::Bytes;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_graph::StoredRows;
use feedline_proto::services::{FeatureRowsRequest, Frame};

use crate::engine::Engine;

/// Maximum size of the rows in one frame.
const FRAME_BYTES: usize = 1 << 20;

/// The frames of a response.
pub(crate) type FeatureFrames = Box<dyn Iterator<Item = Frame> + Send>;

/// Returns the frames with the rows of a feature.
///
/// # Errors
/// Returns an error if the worker has not loaded the job, or does not hold the rows in memory.
pub(crate) fn feature_frames(
    engine: &Engine,
    request: &FeatureRowsRequest,
) -> Result<FeatureFrames, ServiceError> {
    let Some(job) = engine.job(request.job) else {
        let message = format!("this worker has not loaded job {}", request.job);
        return Err(ServiceError::new(ServiceErrorKind::NotFound, message));
    };
    let graph = job.compiled.graph.as_ref().zip(job.compiled.details.dataset.graph.as_ref());
    let rows = graph.and_then(|(graph, summary)| graph.stored_rows(summary, request.content, request.rows));
    let Some(StoredRows { file_bytes, blocks, data }) = rows else {
        let message = format!(
            "this worker does not hold the rows of the feature {} of job {} in memory",
            request.content, request.job
        );
        return Err(ServiceError::new(ServiceErrorKind::NotFound, message));
    };
    let mut head = file_bytes.to_le_bytes().to_vec();
    head.extend(blocks.iter().flat_map(|block| block.0.to_le_bytes()));
    let head_bytes = head.len() as u64;
    let data = Bytes::from_owner(FeatureBuffer(data));
    let chunks = (0..data.len()).step_by(FRAME_BYTES).map(move |start| Frame::Chunk {
        offset: head_bytes + start as u64,
        data: data.slice(start..data.len().min(start + FRAME_BYTES)),
    });
    let head = Frame::Chunk { offset: 0, data: head.into() };
    Ok(Box::new(std::iter::once(head).chain(chunks).chain(std::iter::once(Frame::End))))
}

/// Lets `Bytes` own the buffer of a feature.
struct FeatureBuffer(Buffer);

impl AsRef<[u8]> for FeatureBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
