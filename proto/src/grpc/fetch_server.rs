//! The server side of fetches and of requests for rows of features: decodes the request, calls the service, and sends the bytes
//! without copying them. Batches may be sent in shared memory.

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

use super::caller_service::ConnectionInfo;
use super::errors::{to_status, unreadable};
use super::framing::{push_chunk, push_message};
use super::link::ConnectionLink;
use super::pending_fetches::PendingFetches;
use super::settings::MAX_CHUNK_BYTES;
use crate::convert::Wire;
use crate::local::{LinkId, PeerProcess, ShmFetchSender, ShmServer};
use crate::rpc;
use crate::services::{FetchRequest, Frame, GatherRequest, WorkerService};
use crate::wire;

/// Timeout for the first request of a fetch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the RPCs of a worker.
#[derive(Clone)]
pub(super) struct FetchServer {
    service: Arc<dyn WorkerService>,
    /// Shares memory with clients on this host.
    shm_server: Option<Arc<ShmServer>>,
    pending: Arc<PendingFetches>,
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
    /// Creates a server for the fetches of a worker. Shares memory with clients if `shm_server` is set.
    pub(super) fn new(service: Arc<dyn WorkerService>, shm_server: Option<Arc<ShmServer>>) -> Self {
        Self { service, shm_server, pending: Arc::default() }
    }

    async fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        match request.uri().path() {
            path if path == rpc::FETCH.path => self.answer_fetch(request).await,
            path if path == rpc::GATHER.path => self.answer_gather(request).await,
            _ => Err(Status::unimplemented("")),
        }
    }

    /// Sends rows of a feature. They are never compressed, because numbers of features hardly compress.
    async fn answer_gather(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let decoder = ProstCodec::<wire::FetchFrame, wire::GatherRequest>::default().decoder();
        let limit = rpc::GATHER.max_request.bytes();
        let mut inbound = Streaming::new_request(decoder, request.into_body(), None, Some(limit));
        let message = self.receive_first(&mut inbound).await?;
        let request = GatherRequest::from_wire(message, "gather").map_err(unreadable)?;
        request.check_size().map_err(to_status)?;
        let data = self.service.gather(request).await.map_err(to_status)?;
        let rows = stream::once(ready(Ok(Frame::Chunk { offset: 0, data }))).boxed();
        Ok(response(rows, None, None))
    }

    async fn answer_fetch(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let decoder = ProstCodec::<wire::FetchFrame, wire::FetchRequest>::default().decoder();
        let connection = request.extensions().get::<ConnectionInfo>();
        let (link, process) = connection.map_or((None, None), |info| (info.link.clone(), info.process));
        let body = request.into_body();
        let mut inbound = Streaming::new_request(decoder, body, None, Some(rpc::FETCH.max_request.bytes()));
        let first = self.receive_first(&mut inbound).await?;
        let (link, wanted) = (link.filter(|_| accepts_lz4(&first)), requested_memory(&first));
        let open = FetchRequest::from_wire(first, "fetch").map_err(unreadable)?;
        if matches!(open, FetchRequest::Credit { .. }) {
            return Err(Status::invalid_argument(
                "the first request of a fetch must open a split, not grant credit",
            ));
        }
        // A malformed request ends the credit. The fetch continues with the credit that it has.
        let others = inbound.scan((), |(), request| {
            ready(request.ok().and_then(|request| FetchRequest::from_wire(request, "fetch").ok()))
        });
        let requests = stream::once(ready(open)).chain(others).boxed();
        let frames = self.service.fetch(requests).await.map_err(to_status)?;
        // The service has checked the ticket, so the client may map memory.
        let memory = wanted.zip(process).and_then(|(wanted, process)| self.share_memory(wanted, process));
        Ok(response(frames, memory, link))
    }

    /// Receives the first request of a stream.
    async fn receive_first<T: Default>(&self, inbound: &mut Streaming<T>) -> Result<T, Status> {
        let mut permit = self.pending.register();
        let first = tokio::select! {
            first = tokio::time::timeout(OPEN_TIMEOUT, inbound.message()) => first,
            () = permit.evicted() => {
                return Err(Status::unavailable(
                    "too many fetches are waiting for their first request, and this fetch was among the oldest; retry the fetch",
                ));
            }
        };
        let late = |_| {
            let seconds = OPEN_TIMEOUT.as_secs();
            Status::unavailable(format!(
                "the first request of the fetch did not arrive within {seconds} s; retry the fetch"
            ))
        };
        Ok(first.map_err(late)??.unwrap_or_default())
    }

    /// Returns the sender of pieces in shared memory, if the link of the client exists and belongs to its process.
    fn share_memory(&self, wanted: wire::MemoryLink, process: PeerProcess) -> Option<ShmFetchSender> {
        let wire::MemoryLink { link, fetch, key } = wanted;
        self.shm_server.as_ref()?.open_fetch(LinkId { link, key }, process, fetch)
    }
}

/// Creates the response to a request.
fn response(
    frames: BoxStream<'static, Result<Frame, ServiceError>>,
    memory: Option<ShmFetchSender>,
    link: Option<ConnectionLink>,
) -> http::Response<Body> {
    let body =
        FrameBody { frames, memory, link, outgoing: VecDeque::new(), unsent_piece: None, ended: false };
    let mut response = http::Response::new(Body::new(body));
    let grpc = tonic::metadata::GRPC_CONTENT_TYPE;
    response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    response
}

fn requested_memory(request: &wire::FetchRequest) -> Option<wire::MemoryLink> {
    let Some(wire::fetch_request::Request::Open(open)) = &request.request else { return None };
    open.memory
}

fn accepts_lz4(request: &wire::FetchRequest) -> bool {
    matches!(&request.request, Some(wire::fetch_request::Request::Open(open)) if open.lz4)
}

/// Frames as the body of a response.
struct FrameBody {
    frames: BoxStream<'static, Result<Frame, ServiceError>>,
    memory: Option<ShmFetchSender>,
    /// The connection, if its chunks may be compressed.
    link: Option<ConnectionLink>,
    /// Encoded messages that wait to be sent.
    outgoing: VecDeque<Bytes>,
    /// Offset and bytes of a piece that are not cut into chunks yet. Chunks are cut when they are sent, because the link
    /// may change in the meantime.
    unsent_piece: Option<(u64, Bytes)>,
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
            if let Some(part) = this.outgoing.pop_front() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(part))));
            }
            if this.push_next_chunk() {
                continue;
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let status = match poll_ready!(this.frames.poll_next_unpin(cx)) {
                Some(Ok(frame)) => match this.push_frame(frame) {
                    Ok(()) => continue,
                    Err(status) => status,
                },
                Some(Err(error)) => to_status(error),
                None => Status::new(Code::Ok, ""),
            };
            this.ended = true;
            this.frames = stream::empty().boxed();
            return Poll::Ready(Some(trailers(&status).map(http_body::Frame::trailers)));
        }
    }
}

impl FrameBody {
    /// Encodes a frame. The bytes of a piece are cut into chunks later.
    fn push_frame(&mut self, frame: Frame) -> Result<(), Status> {
        let (offset, data) = match frame {
            Frame::Chunk { offset, data } => (offset, data),
            other => {
                let frame = wire::FetchFrame::try_from(other).map_err(|error| Status::internal(error.0))?;
                push_message(&frame, &mut self.outgoing);
                return Ok(());
            }
        };
        let memory = self.memory.as_ref().filter(|_| offset == 0);
        match memory.and_then(|memory| memory.share(&data)) {
            Some(piece) => self.push(wire::fetch_frame::Frame::Shared(piece)),
            None => self.unsent_piece = Some((offset, data)),
        }
        Ok(())
    }

    /// Cuts the next chunk of a piece. Returns `false` at the end of the piece.
    fn push_next_chunk(&mut self) -> bool {
        let Some((offset, mut data)) = self.unsent_piece.take().filter(|(_, data)| !data.is_empty()) else {
            return false;
        };
        let chunk = data.split_to(data.len().min(MAX_CHUNK_BYTES));
        let bytes = chunk.len() as u32;
        self.unsent_piece = Some((offset + u64::from(bytes), data));
        match self.link.as_ref().and_then(|link| link.pack(&chunk)) {
            Some(lz4) => {
                let packed = wire::PackedChunk { offset, bytes, lz4: lz4.into() };
                self.push(wire::fetch_frame::Frame::Packed(packed));
            }
            None => push_chunk(offset, chunk, &mut self.outgoing),
        }
        true
    }

    fn push(&mut self, frame: wire::fetch_frame::Frame) {
        push_message(&wire::FetchFrame { frame: Some(frame) }, &mut self.outgoing);
    }
}

fn trailers(status: &Status) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(trailers)
}
