//! A worker's service behind gRPC: decode, call, encode, and cut batches into chunks.

use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use feedline_core::cluster::messages::Refusal;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::MAX_CHUNK_BYTES;
use super::refusal::{to_status, unreadable};
use crate::services::{FetchRequest, Frame, WorkerService};
use crate::wire;
use crate::wire::worker_server::Worker;

/// Serves a worker's service.
pub(super) struct WorkerAdapter(pub(super) Arc<dyn WorkerService>);

#[async_trait]
impl Worker for WorkerAdapter {
    type FetchStream = BoxStream<'static, Result<wire::FetchFrame, Status>>;

    async fn fetch(
        &self,
        request: Request<Streaming<wire::FetchRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let mut inbound = request.into_inner();
        let first = inbound.message().await?;
        let open: FetchRequest = first.unwrap_or_default().try_into().map_err(unreadable)?;
        if !matches!(open, FetchRequest::Open(_)) {
            return Err(Status::invalid_argument("a fetch begins with what to open, not with credit"));
        }
        // A request that cannot be read ends the credit; the fetch goes on with what it has.
        let others = inbound.scan((), |(), request| {
            ready(request.ok().and_then(|request| FetchRequest::try_from(request).ok()))
        });
        let requests = stream::once(ready(open)).chain(others).boxed();
        let frames = self.0.fetch(requests).await.map_err(to_status)?;
        Ok(Response::new(frames.flat_map(|frame| stream::iter(cut(frame))).boxed()))
    }
}

/// A service's frame as wire frames: a large chunk as several that share its memory.
fn cut(frame: Result<Frame, Refusal>) -> Box<dyn Iterator<Item = Result<wire::FetchFrame, Status>> + Send> {
    match frame {
        Ok(Frame::Chunk { offset, data }) => Box::new(cut_chunk(offset, data).map(Ok)),
        Ok(other) => {
            let frame = wire::FetchFrame::try_from(other).map_err(|error| Status::internal(error.0));
            Box::new(std::iter::once(frame))
        }
        Err(refusal) => Box::new(std::iter::once(Err(to_status(refusal)))),
    }
}

fn cut_chunk(offset: u64, data: Bytes) -> impl Iterator<Item = wire::FetchFrame> {
    (0..data.len()).step_by(MAX_CHUNK_BYTES).map(move |start| {
        let end = data.len().min(start + MAX_CHUNK_BYTES);
        let chunk = wire::Chunk { offset: offset + start as u64, data: data.slice(start..end) };
        wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Chunk(chunk)) }
    })
}
