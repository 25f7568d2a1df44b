//! A worker behind gRPC, as a service to its caller.

use async_trait::async_trait;
use feedline_core::cluster::messages::Refusal;
use futures::StreamExt;
use futures::stream::BoxStream;
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
        let requests = requests.map(wire::FetchRequest::from);
        let response =
            self.client.clone().fetch(requests).await.map_err(|status| self.peer.refusal(&status))?;
        let peer = self.peer.clone();
        let frames = response.into_inner().map(move |frame| match frame {
            Ok(frame) => frame.try_into().map_err(|error| peer.unreadable(&error)),
            Err(status) => Err(peer.refusal(&status)),
        });
        Ok(frames.boxed())
    }
}
