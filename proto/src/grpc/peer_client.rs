//! Another coordinator behind gRPC, as its peers and those who add and remove coordinators see it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use futures::stream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::channel::RemoteName;
use super::coordinator_client::read_manifest;
use super::version::VersionInterceptor;
use super::{MANIFEST_CHUNK_BYTES, MAX_CONTROL_BYTES, PEER_TIMEOUT};
use crate::convert::dataset::encode_manifest;
use crate::services::{MemberInfo, MemberStatus, MembersService, PeerService};
use crate::wire;
use crate::wire::index_chunk::Part;
use crate::wire::members_client::MembersClient;
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
        let from = soon(wire::Introduction { id: from.id, has_state: from.has_state });
        let answer = self.answer(self.client.clone().introduce(from).await)?;
        Ok(MemberInfo { id: answer.id, has_state: answer.has_state })
    }

    async fn deliver(&self, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        self.answer(self.client.clone().deliver(soon(wire::RaftMessages { messages })).await).map(|_| ())
    }

    async fn keep_index(&self, key: &str, manifest: Arc<Manifest>) -> Result<(), ServiceError> {
        let index = wire::IndexRef { key: key.to_owned(), fingerprint: manifest.fingerprint() };
        if self.answer(self.client.clone().has_index(index).await)?.has {
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
        self.answer(self.client.clone().keep_index(chunks).await).map(|_| ())
    }

    async fn index(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError> {
        let index = wire::IndexRef { key: key.to_owned(), fingerprint: fingerprint.to_owned() };
        let chunks = self.answer(self.client.clone().get_index(index).await)?;
        read_manifest(&self.peer, chunks).await
    }
}

/// A request that is answered soon, or not at all.
fn soon<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(PEER_TIMEOUT);
    request
}

/// A coordinator as those see it who add and remove coordinators.
pub(super) struct RemoteMembers {
    peer: RemoteName,
    client: MembersClient<InterceptedService<Channel, VersionInterceptor>>,
}

impl RemoteMembers {
    pub(super) fn new(peer: RemoteName, channel: Channel, speak: VersionInterceptor) -> Self {
        let client = MembersClient::with_interceptor(channel, speak);
        Self { peer, client }
    }

    fn list(
        &self,
        response: Result<Response<wire::MemberList>, Status>,
    ) -> Result<Vec<MemberStatus>, ServiceError> {
        let status = |member: wire::Member| {
            let wire::Member { id, url, leads, votes, is_heard, lacks } = member;
            MemberStatus { id, url, leads, votes, is_heard, lacks }
        };
        let list = response.map_err(|status| self.peer.refusal(&status))?.into_inner();
        Ok(list.members.into_iter().map(status).collect())
    }
}

#[async_trait]
impl MembersService for RemoteMembers {
    async fn members(&self) -> Result<Vec<MemberStatus>, ServiceError> {
        self.list(self.client.clone().list_members(wire::ListMembersRequest {}).await)
    }

    async fn add_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        self.list(self.client.clone().add_member(wire::MemberRef { url: url.to_owned() }).await)
    }

    async fn remove_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        self.list(self.client.clone().remove_member(wire::MemberRef { url: url.to_owned() }).await)
    }
}
