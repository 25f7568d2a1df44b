//! A worker's fetches behind gRPC: decode, call, and lay messages around the bytes of batches without copying them, or
//! lend these in shared memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};
use std::time::Duration;

use bytes::Bytes;
use feedline_data::messages::ServiceError;
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

use super::MAX_CHUNK_BYTES;
use super::caller_service::ConnectionInfo;
use super::framing::{put_chunk, put_message};
use super::link::ConnectionLink;
use super::pending_fetches::PendingFetches;
use super::refusal::{to_status, unreadable};
use crate::local::{LinkId, PeerProcess, ShmFetchSender, ShmServer};
use crate::rpc;
use crate::services::{FetchRequest, Frame, WorkerService};
use crate::wire;

/// Time that a client has to say what it wants.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a worker's service.
#[derive(Clone)]
pub(super) struct FetchServer {
    service: Arc<dyn WorkerService>,
    /// Lends memory to clients on this host.
    lender: Option<Arc<ShmServer>>,
    unopened: Arc<PendingFetches>,
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
    /// Serves this service, and lends memory where there is a lender.
    pub(super) fn new(service: Arc<dyn WorkerService>, lender: Option<Arc<ShmServer>>) -> Self {
        Self { service, lender, unopened: Arc::default() }
    }

    async fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        if request.uri().path() != rpc::FETCH.path {
            return Err(Status::unimplemented(""));
        }
        let decoder = ProstCodec::<wire::FetchFrame, wire::FetchRequest>::default().decoder();
        let over = request.extensions().get::<ConnectionInfo>();
        let (link, process) = over.map_or((None, None), |over| (over.link.clone(), over.process));
        let body = request.into_body();
        let mut inbound = Streaming::new_request(decoder, body, None, Some(rpc::FETCH.max_request.bytes()));
        let first = self.first(&mut inbound).await?;
        let (link, wanted) = (link.filter(|_| accepts_lz4(&first)), wanted_memory(&first));
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
        // Only now is it known that the client may have the rows.
        let memory = wanted.zip(process).and_then(|(wanted, process)| self.lend(wanted, process));
        let body = FrameBody { frames, memory, link, parts: VecDeque::new(), rest: None, ended: false };
        let mut response = http::Response::new(Body::new(body));
        let grpc = tonic::metadata::GRPC_CONTENT_TYPE;
        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        Ok(response)
    }

    /// What the client wants.
    async fn first(&self, inbound: &mut Streaming<wire::FetchRequest>) -> Result<wire::FetchRequest, Status> {
        let mut place = self.unopened.enter();
        let first = tokio::select! {
            first = tokio::time::timeout(OPEN_TIMEOUT, inbound.message()) => first,
            () = place.taken() => {
                return Err(Status::unavailable(
                    "too many fetches do not say what they want, and this one was among the oldest; ask again",
                ));
            }
        };
        let late = |_| {
            let seconds = OPEN_TIMEOUT.as_secs();
            Status::unavailable(format!("the fetch did not say within {seconds} s what it wants; ask again"))
        };
        Ok(first.map_err(late)??.unwrap_or_default())
    }

    /// The share of lent memory of a client that is this process, where its link is there.
    fn lend(&self, wanted: wire::MemoryLink, process: PeerProcess) -> Option<ShmFetchSender> {
        let wire::MemoryLink { link, fetch, key } = wanted;
        self.lender.as_ref()?.fetch(LinkId { link, key }, process, fetch)
    }
}

fn wanted_memory(request: &wire::FetchRequest) -> Option<wire::MemoryLink> {
    let Some(wire::fetch_request::Request::Open(open)) = &request.request else { return None };
    open.memory
}

fn accepts_lz4(request: &wire::FetchRequest) -> bool {
    matches!(&request.request, Some(wire::fetch_request::Request::Open(open)) if open.lz4)
}

/// Frames as the body of an answer.
struct FrameBody {
    frames: BoxStream<'static, Result<Frame, ServiceError>>,
    memory: Option<ShmFetchSender>,
    /// The connection, where chunks may be packed.
    link: Option<ConnectionLink>,
    /// Parts of messages that are to go out.
    parts: VecDeque<Bytes>,
    /// What is left of a piece, and its offset. Cut as it goes out, since the link may change meanwhile.
    rest: Option<(u64, Bytes)>,
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
            if this.put_next_chunk() {
                continue;
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let status = match poll_ready!(this.frames.poll_next_unpin(cx)) {
                Some(Ok(frame)) => match this.put_frame(frame) {
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

impl FrameBody {
    /// A service's frame as messages; the bytes of a piece as what is left to be cut.
    fn put_frame(&mut self, frame: Frame) -> Result<(), Status> {
        let (offset, data) = match frame {
            Frame::Chunk { offset, data } => (offset, data),
            other => {
                let frame = wire::FetchFrame::try_from(other).map_err(|error| Status::internal(error.0))?;
                put_message(&frame, &mut self.parts);
                return Ok(());
            }
        };
        let memory = self.memory.as_ref().filter(|_| offset == 0);
        match memory.and_then(|memory| memory.lend(&data)) {
            Some(lent) => self.put(wire::fetch_frame::Frame::Lent(lent)),
            None => self.rest = Some((offset, data)),
        }
        Ok(())
    }

    /// Cuts the next chunk of a piece; `false` when nothing of it is left.
    fn put_next_chunk(&mut self) -> bool {
        let Some((offset, mut data)) = self.rest.take().filter(|(_, data)| !data.is_empty()) else {
            return false;
        };
        let chunk = data.split_to(data.len().min(MAX_CHUNK_BYTES));
        let bytes = chunk.len() as u32;
        self.rest = Some((offset + u64::from(bytes), data));
        match self.link.as_ref().and_then(|link| link.pack(&chunk)) {
            Some(lz4) => {
                let packed = wire::Packed { offset, bytes, lz4: lz4.into() };
                self.put(wire::fetch_frame::Frame::Packed(packed));
            }
            None => put_chunk(offset, chunk, &mut self.parts),
        }
        true
    }

    fn put(&mut self, frame: wire::fetch_frame::Frame) {
        put_message(&wire::FetchFrame { frame: Some(frame) }, &mut self.parts);
    }
}

fn trailers(status: &Status) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(trailers)
}
