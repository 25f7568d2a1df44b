//! A worker behind gRPC, as a service to its caller.

use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use feedline_core::cluster::messages::Refusal;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::MAX_MESSAGE_BYTES;
use super::channel::Peer;
use super::version::Speak;
use crate::services::{FetchRequest, Frame, WorkerService};
use crate::wire;
use crate::wire::worker_client::WorkerClient;

/// A worker behind gRPC.
pub(super) struct RemoteWorker {
    peer: Peer,
    client: WorkerClient<InterceptedService<Channel, Speak>>,
}

impl RemoteWorker {
    pub(super) fn new(peer: Peer, channel: Channel, version: u32) -> Self {
        let client = WorkerClient::with_interceptor(channel, Speak::new(version))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self { peer, client }
    }
}

#[async_trait]
impl WorkerService for RemoteWorker {
    async fn fetch(
        &self,
        requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, Refusal>>, Refusal> {
        let abandoned = CancellationToken::new();
        let requests = requests.take_until(abandoned.clone().cancelled_owned()).boxed();
        // HTTP/2 resets a stream only when both of its directions are given up: no frames wanted, no more requests.
        let guard = abandoned.drop_guard();
        let response = self
            .client
            .clone()
            .fetch(Outbound(requests))
            .await
            .map_err(|status| self.peer.refusal(&status))?;
        let peer = self.peer.clone();
        let frames = response.into_inner().map(move |frame| {
            let _held = &guard;
            match frame {
                Ok(frame) => frame.try_into().map_err(|error| peer.unreadable(&error)),
                Err(status) => Err(peer.refusal(&status)),
            }
        });
        Ok(frames.boxed())
    }
}

/// Requests on their way out. A type of its own, since the compiler cannot see that a mapped `BoxStream` is `Send`
/// within a boxed future.
struct Outbound(BoxStream<'static, FetchRequest>);

impl Stream for Outbound {
    type Item = wire::FetchRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx).map(|request| request.map(Into::into))
    }
}
