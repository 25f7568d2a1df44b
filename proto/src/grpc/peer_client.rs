//! Another coordinator over gRPC, as its peers see it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use futures::stream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::MANIFEST_CHUNK_BYTES;
use super::channel::RemoteName;
use super::coordinator_client::{read_manifest, request};
use super::version::VersionInterceptor;
use crate::convert::dataset::encode_manifest;
use crate::rpc::{self, MAX_CONTROL_BYTES};
use crate::services::{MemberInfo, PeerService};
use crate::wire;
use crate::wire::index_chunk::Part;
use crate::wire::peer_client::PeerClient;

/// A coordinator as another one sees it.
pub(super) struct RemotePeer {
    peer: RemoteName,
    client: PeerClient<InterceptedService<Channel, VersionInterceptor>>,
}

impl RemotePeer {
    pub(super) fn new(peer: RemoteName, channel: Channel, speak: VersionInterceptor) -> Self {
        let client = PeerClient::with_interceptor(channel, speak)
            .max_decoding_message_size(MAX_CONTROL_BYTES)
            .max_encoding_message_size(MAX_CONTROL_BYTES);
        Self { peer, client }
    }

    fn answer<W>(&self, response: Result<Response<W>, Status>) -> Result<W, ServiceError> {
        response.map(Response::into_inner).map_err(|status| self.peer.refusal(&status))
    }
}

#[async_trait]
impl PeerService for RemotePeer {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        let from = request(&rpc::INTRODUCE, wire::Introduction { id: from.id, has_state: from.has_state });
        let answer = self.answer(self.client.clone().introduce(from).await)?;
        Ok(MemberInfo { id: answer.id, has_state: answer.has_state })
    }

    async fn deliver(&self, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        let messages = request(&rpc::DELIVER, wire::RaftMessages { messages });
        self.answer(self.client.clone().deliver(messages).await).map(|_| ())
    }

    async fn keep_index(&self, key: &str, manifest: Arc<Manifest>) -> Result<(), ServiceError> {
        let index = wire::IndexRef { key: key.to_owned(), fingerprint: manifest.fingerprint() };
        if self.answer(self.client.clone().has_index(request(&rpc::HAS_INDEX, index)).await)?.has {
            return Ok(());
        }
        let encoded = tokio::task::spawn_blocking(move || Bytes::from(encode_manifest(&manifest))).await;
        let bytes = encoded.map_err(|error| self.peer.refusal(&Status::unavailable(error.to_string())))?;
        let name = wire::IndexChunk { part: Some(Part::Key(key.to_owned())) };
        let parts = (0..bytes.len()).step_by(MANIFEST_CHUNK_BYTES).map(move |start| {
            let end = bytes.len().min(start + MANIFEST_CHUNK_BYTES);
            wire::IndexChunk { part: Some(Part::Data(bytes.slice(start..end))) }
        });
        let chunks = stream::iter(std::iter::once(name).chain(parts));
        self.answer(self.client.clone().keep_index(request(&rpc::KEEP_INDEX, chunks)).await).map(|_| ())
    }

    async fn index(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError> {
        let index = wire::IndexRef { key: key.to_owned(), fingerprint: fingerprint.to_owned() };
        let chunks = self.answer(self.client.clone().get_index(request(&rpc::GET_INDEX, index)).await)?;
        read_manifest(&self.peer, chunks).await
    }
}
