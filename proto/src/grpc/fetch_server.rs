//! A worker's fetches behind gRPC: decode, call, and lay messages around the bytes of batches without copying them, or
//! lend these in shared memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};

use bytes::Bytes;
use feedline_core::cluster::messages::Refusal;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use http::HeaderMap;
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::framing::{put_chunks, put_message};
use super::refusal::{to_status, unreadable};
use super::{FETCH_PATH, MAX_MESSAGE_BYTES};
use crate::local::{Lender, LinkFetch};
use crate::services::{FetchRequest, Frame, WorkerService};
use crate::wire;

/// Serves a worker's service.
#[derive(Clone)]
pub(super) struct FetchServer {
    pub(super) service: Arc<dyn WorkerService>,
    /// Lends memory to clients on this host.
    pub(super) lender: Option<Arc<Lender>>,
}

impl NamedService for FetchServer {
    const NAME: &'static str = "feedline.v1.Worker";
}

impl Service<http::Request<Body>> for FetchServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await.unwrap_or_else(Status::into_http)) })
    }
}

impl FetchServer {
    async fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        if request.uri().path() != FETCH_PATH {
            return Err(Status::unimplemented(""));
        }
        let decoder = ProstCodec::<wire::FetchFrame, wire::FetchRequest>::default().decoder();
        let body = request.into_body();
        let mut inbound = Streaming::new_request(decoder, body, None, Some(MAX_MESSAGE_BYTES));
        let first = inbound.message().await?.unwrap_or_default();
        let memory = self.memory_of(&first);
        let open: FetchRequest = first.try_into().map_err(unreadable)?;
        if !matches!(open, FetchRequest::Open(_)) {
            return Err(Status::invalid_argument("a fetch begins with what to open, not with credit"));
        }
        // A request that cannot be read ends the credit; the fetch goes on with what it has.
        let others = inbound.scan((), |(), request| {
            ready(request.ok().and_then(|request| FetchRequest::try_from(request).ok()))
        });
        let requests = stream::once(ready(open)).chain(others).boxed();
        let frames = self.service.fetch(requests).await.map_err(to_status)?;
        let body = FrameBody { frames, memory, parts: VecDeque::new(), ended: false };
        let mut response = http::Response::new(Body::new(body));
        let grpc = tonic::metadata::GRPC_CONTENT_TYPE;
        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        Ok(response)
    }

    /// The client's share of lent memory, where it asks for one and its link is there.
    fn memory_of(&self, request: &wire::FetchRequest) -> Option<LinkFetch> {
        let Some(wire::fetch_request::Request::Open(open)) = &request.request else { return None };
        let memory = open.memory.as_ref()?;
        self.lender.as_ref()?.fetch(memory.link, memory.fetch)
    }
}

/// Frames as the body of an answer.
struct FrameBody {
    frames: BoxStream<'static, Result<Frame, Refusal>>,
    memory: Option<LinkFetch>,
    /// Parts of messages that are to go out.
    parts: VecDeque<Bytes>,
    ended: bool,
}

impl http_body::Body for FrameBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(part) = this.parts.pop_front() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(part))));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let status = match poll_ready!(this.frames.poll_next_unpin(cx)) {
                Some(Ok(frame)) => match put_frame(frame, this.memory.as_ref(), &mut this.parts) {
                    Ok(()) => continue,
                    Err(status) => status,
                },
                Some(Err(refusal)) => to_status(refusal),
                None => Status::new(Code::Ok, ""),
            };
            this.ended = true;
            this.frames = stream::empty().boxed();
            return Poll::Ready(Some(trailers(&status).map(http_body::Frame::trailers)));
        }
    }
}

/// A service's frame as messages.
fn put_frame(frame: Frame, memory: Option<&LinkFetch>, parts: &mut VecDeque<Bytes>) -> Result<(), Status> {
    match frame {
        Frame::Chunk { offset: 0, data } => match memory.and_then(|memory| memory.lend(&data)) {
            Some(lent) => {
                let frame = wire::fetch_frame::Frame::Lent(lent);
                put_message(&wire::FetchFrame { frame: Some(frame) }, parts);
            }
            None => put_chunks(0, &data, parts),
        },
        Frame::Chunk { offset, data } => put_chunks(offset, &data, parts),
        other => {
            let frame = wire::FetchFrame::try_from(other).map_err(|error| Status::internal(error.0))?;
            put_message(&frame, parts);
        }
    }
    Ok(())
}

fn trailers(status: &Status) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(trailers)
}
