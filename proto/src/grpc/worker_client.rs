//! A remote worker over gRPC.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::channel::{RemoteName, connect_lazily};
use super::fetch_client::{self, FrameStream};
use super::framing::ReceivedMessage;
use super::route::{Route, Router};
use crate::PROTOCOL_VERSION;
use crate::convert::{Wire, WireError};
use crate::local::{ReceivePath, ShmFetchReceiver, Transport};
use crate::rpc;
use crate::services::{FetchRequest, Frame, GatherRequest, WorkerService};
use crate::wire;

/// A callback that receives the transport and the number of bytes of each received chunk.
pub type OnReceived = fn(ReceivePath, u64);

/// Returns a client of the worker at `url`, such as `http://10.0.0.7:7071`, over the fastest transport. The client connects
/// at its first request and reconnects after a lost connection. Call it inside a tokio runtime.
///
/// # Errors
/// Returns `Invalid` for a malformed address. An unreachable worker fails the first request.
pub fn connect_worker(url: &str, credentials: &Credentials) -> Result<Arc<dyn WorkerService>, ServiceError> {
    connect_worker_over(&WorkerAddress::new(url), credentials, Transport::Auto, |_, _| {})
}

/// Like [`connect_worker`], over this transport. The client does not send the token, because workers check tickets.
///
/// # Errors
/// Returns the errors of [`connect_worker`], or `Invalid` for a malformed `tls_name`.
pub fn connect_worker_over(
    address: &WorkerAddress,
    credentials: &Credentials,
    transport: Transport,
    on_received: OnReceived,
) -> Result<Arc<dyn WorkerService>, ServiceError> {
    let credentials = Credentials { token: None, ..credentials.clone() };
    connect(address, &credentials, PROTOCOL_VERSION, transport, on_received)
}

/// Like [`connect_worker`], with this version of the protocol.
///
/// # Errors
/// Returns the errors of [`connect_worker`].
pub fn connect_worker_with_version(url: &str, version: u32) -> Result<Arc<dyn WorkerService>, ServiceError> {
    connect(&WorkerAddress::new(url), &Credentials::default(), version, Transport::Auto, |_, _| {})
}

fn connect(
    address: &WorkerAddress,
    credentials: &Credentials,
    version: u32,
    transport: Transport,
    on_received: OnReceived,
) -> Result<Arc<dyn WorkerService>, ServiceError> {
    let remote = RemoteName::of_worker(address, credentials);
    let channel = connect_lazily(&remote, credentials)?;
    let router = Router::new(remote.clone(), version, transport, channel);
    Ok(Arc::new(RemoteWorker { remote, version, router, on_received, is_remote: AtomicBool::new(false) }))
}

/// A remote worker.
struct RemoteWorker {
    remote: RemoteName,
    version: u32,
    router: Router,
    on_received: OnReceived,
    /// Whether the last fetch crossed a network.
    is_remote: AtomicBool,
}

#[async_trait]
impl WorkerService for RemoteWorker {
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Route { channel, memory, via } = self.router.route().await?;
        self.is_remote.store(via == ReceivePath::Tcp && !self.remote.is_loopback(), Ordering::Relaxed);
        let shared = memory.map(|client| client.open_fetch());
        let abandoned = CancellationToken::new();
        let requests = requests.take_until(abandoned.clone().cancelled_owned());
        let memory = shared.as_ref().map(|shared| shared.memory);
        let requests = to_wire(requests, memory, via == ReceivePath::Tcp);
        // HTTP/2 resets a stream only after the client has dropped both the frames and the requests.
        let guard = abandoned.drop_guard();
        let received = self.response(fetch_client::fetch(channel, self.version, requests).await)?;
        let remote = self.remote.clone();
        let incoming =
            IncomingFetch { received, shared, remote, via, on_received: self.on_received, _guard: guard };
        Ok(stream::unfold(incoming, |mut incoming| async move { Some((incoming.next().await?, incoming)) })
            .boxed())
    }

    async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        request.check_size()?;
        let gathered = tokio::time::timeout(rpc::GATHER_DEADLINE, self.receive_rows(request)).await;
        gathered.unwrap_or_else(|_| {
            let RemoteName { role, url, .. } = &self.remote;
            let seconds = rpc::GATHER_DEADLINE.as_secs();
            let message = format!("the {role} at {url} did not send rows of a feature within {seconds} s");
            Err(ServiceError::new(ServiceErrorKind::Unavailable, message))
        })
    }

    fn is_remote(&self) -> bool {
        self.is_remote.load(Ordering::Relaxed)
    }
}

impl RemoteWorker {
    /// Converts the result of opening a request. Discards the route if the worker is unreachable.
    fn response(&self, response: Result<FrameStream, tonic::Status>) -> Result<FrameStream, ServiceError> {
        let received = self.remote.response(response);
        if received.as_ref().is_err_and(|error| error.kind == ServiceErrorKind::Unavailable) {
            self.router.discard();
        }
        received
    }

    /// Requests rows of a feature, and joins their chunks.
    async fn receive_rows(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        let Route { channel, via, .. } = self.router.route().await?;
        // The size is checked.
        let expected = request.response_bytes() as usize;
        let mut received =
            self.response(fetch_client::gather(channel, self.version, request.into_wire()).await)?;
        let mut rows = BytesMut::with_capacity(expected);
        while let Some(message) = received.next().await {
            let chunk = match message.map_err(|status| self.remote.error(&status))? {
                ReceivedMessage::Chunk { offset, data } if offset == rows.len() as u64 => data,
                _ => return Err(self.unreadable_rows("another message than the next chunk")),
            };
            if chunk.len() > expected - rows.len() {
                return Err(self.unreadable_rows(&format!("more than {expected} bytes")));
            }
            (self.on_received)(via, chunk.len() as u64);
            rows.extend_from_slice(&chunk);
        }
        if rows.len() < expected {
            return Err(self.unreadable_rows(&format!("{} of {expected} bytes", rows.len())));
        }
        Ok(rows.freeze())
    }

    fn unreadable_rows(&self, sent: &str) -> ServiceError {
        let reason = format!("the rows of a feature cannot be read: the worker sent {sent}");
        self.remote.unreadable(&WireError(reason))
    }
}

/// The frames of one fetch.
struct IncomingFetch {
    received: FrameStream,
    shared: Option<ShmFetchReceiver>,
    remote: RemoteName,
    via: ReceivePath,
    on_received: OnReceived,
    _guard: DropGuard,
}

impl IncomingFetch {
    async fn next(&mut self) -> Option<Result<Frame, ServiceError>> {
        use wire::fetch_frame::Frame::{Packed, Shared};
        match self.received.next().await? {
            Ok(ReceivedMessage::Chunk { offset, data }) => {
                (self.on_received)(self.via, data.len() as u64);
                Some(Ok(Frame::Chunk { offset, data }))
            }
            Ok(ReceivedMessage::Message(wire::FetchFrame { frame: Some(Shared(piece)) }))
                if self.shared.is_some() =>
            {
                Some(self.map_piece(piece).await)
            }
            Ok(ReceivedMessage::Message(wire::FetchFrame { frame: Some(Packed(packed)) })) => {
                (self.on_received)(self.via, packed.lz4.len() as u64);
                Some(unpack(&packed).map_err(|error| self.remote.unreadable(&error)))
            }
            Ok(ReceivedMessage::Message(frame)) => {
                Some(frame.try_into().map_err(|error| self.remote.unreadable(&error)))
            }
            Err(status) => Some(Err(self.remote.error(&status))),
        }
    }

    /// Returns the bytes of a piece in shared memory.
    async fn map_piece(&mut self, piece: wire::SharedPiece) -> Result<Frame, ServiceError> {
        let failed = |reason: String| {
            let RemoteName { role, url, .. } = &self.remote;
            ServiceError::new(ServiceErrorKind::Unavailable, format!("the {role} at {url}: {reason}"))
        };
        let Some(shared) = &mut self.shared else {
            return Err(failed(
                "the worker sent a piece in shared memory, which was not requested".to_owned(),
            ));
        };
        let data = shared.map_piece(piece).await.map_err(failed)?;
        (self.on_received)(ReceivePath::Memory, data.len() as u64);
        Ok(Frame::Chunk { offset: 0, data })
    }
}

/// Decompresses a chunk.
pub(super) fn unpack(packed: &wire::PackedChunk) -> Result<Frame, WireError> {
    let bytes = packed.bytes as usize;
    let limit = rpc::FETCH.max_response.bytes();
    if bytes > limit {
        return Err(WireError(format!(
            "a compressed chunk is {bytes} bytes long; the limit is {limit} bytes"
        )));
    }
    let data = lz4_flex::block::decompress(&packed.lz4, bytes);
    let data = data.map_err(|error| WireError(format!("cannot decompress a chunk: {error}")))?;
    Ok(Frame::Chunk { offset: packed.offset, data: data.into() })
}

/// Encodes requests. The first request also offers shared memory and LZ4.
fn to_wire(
    requests: impl Stream<Item = FetchRequest> + Send + 'static,
    memory: Option<wire::MemoryLink>,
    lz4: bool,
) -> impl Stream<Item = wire::FetchRequest> + Send + 'static {
    requests.map(move |request| {
        let mut request: wire::FetchRequest = request.into_wire();
        if let Some(wire::fetch_request::Request::Open(open)) = &mut request.request {
            (open.memory, open.lz4) = (memory, lz4);
        }
        request
    })
}
