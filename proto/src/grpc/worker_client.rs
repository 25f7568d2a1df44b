//! A worker behind gRPC, as a service to its caller.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use super::channel::RemoteName;
use super::fetch_client::{self, FrameStream};
use super::framing::ReceivedMessage;
use super::route::{Route, Router};
use crate::convert::WireError;
use crate::local::{ReceivePath, ShmFetchReceiver, Transport};
use crate::rpc;
use crate::services::{FetchRequest, Frame, WorkerService};
use crate::wire;

/// Hears of bytes of batches as they come.
pub type OnReceived = fn(ReceivePath, u64);

/// A worker behind gRPC.
pub(super) struct RemoteWorker {
    peer: RemoteName,
    version: u32,
    router: Router,
    on_received: OnReceived,
    /// Whether the last fetch crossed a network.
    is_remote: AtomicBool,
}

impl RemoteWorker {
    pub(super) fn new(
        peer: RemoteName,
        channel: Channel,
        version: u32,
        transport: Transport,
        on_received: OnReceived,
    ) -> Self {
        let router = Router::new(peer.clone(), version, transport, channel);
        Self { peer, version, router, on_received, is_remote: AtomicBool::new(false) }
    }
}

#[async_trait]
impl WorkerService for RemoteWorker {
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Route { channel, memory, via } = self.router.route().await?;
        self.is_remote.store(via == ReceivePath::Tcp && !self.peer.is_loopback(), Ordering::Relaxed);
        let borrowed = memory.map(|link| link.begin());
        let abandoned = CancellationToken::new();
        let requests = requests.take_until(abandoned.clone().cancelled_owned());
        let memory = borrowed.as_ref().map(|borrowed| borrowed.memory);
        let requests = to_wire(requests, memory, via == ReceivePath::Tcp);
        // HTTP/2 resets a stream only when both of its directions are given up: no frames wanted, no more requests.
        let guard = abandoned.drop_guard();
        let received = match fetch_client::fetch(channel, self.version, requests).await {
            Ok(received) => received,
            Err(status) => {
                let refusal = self.peer.refusal(&status);
                if refusal.kind == ServiceErrorKind::Unavailable {
                    self.router.forget();
                }
                return Err(refusal);
            }
        };
        let peer = self.peer.clone();
        let incoming =
            Incoming { received, borrowed, peer, via, on_received: self.on_received, _guard: guard };
        Ok(stream::unfold(incoming, |mut incoming| async move { Some((incoming.next().await?, incoming)) })
            .boxed())
    }

    fn is_remote(&self) -> bool {
        self.is_remote.load(Ordering::Relaxed)
    }
}

/// What comes of one fetch.
struct Incoming {
    received: FrameStream,
    borrowed: Option<ShmFetchReceiver>,
    peer: RemoteName,
    via: ReceivePath,
    on_received: OnReceived,
    _guard: DropGuard,
}

impl Incoming {
    async fn next(&mut self) -> Option<Result<Frame, ServiceError>> {
        use wire::fetch_frame::Frame::{Lent, Packed};
        match self.received.next().await? {
            Ok(ReceivedMessage::Chunk { offset, data }) => {
                (self.on_received)(self.via, data.len() as u64);
                Some(Ok(Frame::Chunk { offset, data }))
            }
            Ok(ReceivedMessage::Message(wire::FetchFrame { frame: Some(Lent(lent)) }))
                if self.borrowed.is_some() =>
            {
                Some(self.borrow(lent).await)
            }
            Ok(ReceivedMessage::Message(wire::FetchFrame { frame: Some(Packed(packed)) })) => {
                (self.on_received)(self.via, packed.lz4.len() as u64);
                Some(unpack(&packed).map_err(|error| self.peer.unreadable(&error)))
            }
            Ok(ReceivedMessage::Message(frame)) => {
                Some(frame.try_into().map_err(|error| self.peer.unreadable(&error)))
            }
            Err(status) => Some(Err(self.peer.refusal(&status))),
        }
    }

    async fn borrow(&mut self, lent: wire::Lent) -> Result<Frame, ServiceError> {
        let gone = |why: String| {
            let RemoteName { role, url, .. } = &self.peer;
            ServiceError::new(ServiceErrorKind::Unavailable, format!("the {role} at {url}: {why}"))
        };
        let Some(borrowed) = &mut self.borrowed else {
            return Err(gone("it lent what nobody borrows".to_owned()));
        };
        let data = borrowed.take(lent).await.map_err(gone)?;
        (self.on_received)(ReceivePath::Memory, data.len() as u64);
        Ok(Frame::Chunk { offset: 0, data })
    }
}

/// The chunk that was packed.
pub(super) fn unpack(packed: &wire::Packed) -> Result<Frame, WireError> {
    let bytes = packed.bytes as usize;
    if bytes > rpc::FETCH.max_response.bytes() {
        return Err(WireError(format!("a packed chunk says that it has {bytes} bytes")));
    }
    let data = lz4_flex::block::decompress(&packed.lz4, bytes);
    let data = data.map_err(|error| WireError(format!("a packed chunk is damaged: {error}")))?;
    Ok(Frame::Chunk { offset: packed.offset, data: data.into() })
}

/// Requests as messages; the opening one says which memory may be lent, and whether chunks may come packed.
fn to_wire(
    requests: impl Stream<Item = FetchRequest> + Send + 'static,
    memory: Option<wire::MemoryLink>,
    lz4: bool,
) -> impl Stream<Item = wire::FetchRequest> + Send + 'static {
    requests.map(move |request| {
        let mut request = wire::FetchRequest::from(request);
        if let Some(wire::fetch_request::Request::Open(open)) = &mut request.request {
            (open.memory, open.lz4) = (memory, lz4);
        }
        request
    })
}
