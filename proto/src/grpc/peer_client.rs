//! A client of another coordinator's peer service.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_access::Credentials;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use futures::stream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::channel::{RemoteName, connect_lazily_within, request};
use super::introduction::{decode_introduction, encode_introduction};
use super::manifest_stream::{index_id, manifest_chunks, receive_manifest};
use super::version::VersionInterceptor;
use crate::PROTOCOL_VERSION;
use crate::rpc::{self, INDEX_DEADLINE, MAX_CONTROL_BYTES};
use crate::services::{MemberInfo, PeerService};
use crate::wire;
use crate::wire::index_chunk::Part;
use crate::wire::peer_client::PeerClient;

/// Returns a client of the peer service of the coordinator at `url`. Call it inside a tokio runtime.
///
/// # Errors
/// Returns the errors of [`super::connect_coordinator`].
pub fn connect_peer(url: &str, credentials: &Credentials) -> Result<Arc<dyn PeerService>, ServiceError> {
    connect_peer_with_version(url, credentials, PROTOCOL_VERSION)
}

/// Like [`connect_peer`], with this version of the protocol.
///
/// # Errors
/// Returns the errors of [`connect_peer`].
pub fn connect_peer_with_version(
    url: &str,
    credentials: &Credentials,
    version: u32,
) -> Result<Arc<dyn PeerService>, ServiceError> {
    let remote = RemoteName::new("coordinator", url, credentials);
    let channel = connect_lazily_within(&remote, credentials, INDEX_DEADLINE)?;
    let version = VersionInterceptor::new(version, credentials);
    let client = PeerClient::with_interceptor(channel, version)
        .max_decoding_message_size(MAX_CONTROL_BYTES)
        .max_encoding_message_size(MAX_CONTROL_BYTES);
    Ok(Arc::new(RemotePeer { remote, client }))
}

/// The peer service of another coordinator.
struct RemotePeer {
    remote: RemoteName,
    client: PeerClient<InterceptedService<Channel, VersionInterceptor>>,
}

impl RemotePeer {
    fn response<W>(&self, response: Result<Response<W>, Status>) -> Result<W, ServiceError> {
        self.remote.response(response).map(Response::into_inner)
    }
}

#[async_trait]
impl PeerService for RemotePeer {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        let from = request(&rpc::INTRODUCE, encode_introduction(from));
        self.response(self.client.clone().introduce(from).await).map(decode_introduction)
    }

    async fn join(&self, from: MemberInfo) -> Result<(), ServiceError> {
        let from = request(&rpc::JOIN, encode_introduction(from));
        self.response(self.client.clone().join(from).await).map(|_| ())
    }

    async fn deliver(&self, sender: MemberInfo, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        let messages = wire::RaftMessages { messages, sender: Some(encode_introduction(sender)) };
        let messages = request(&rpc::DELIVER, messages);
        self.response(self.client.clone().deliver(messages).await).map(|_| ())
    }

    async fn store_index(
        &self,
        key: &str,
        manifest: Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), ServiceError> {
        let reference = index_id(Arc::clone(&manifest)).await.map_err(|status| self.remote.error(&status))?;
        let index = wire::IndexRef { key: key.to_owned(), reference };
        if self.response(self.client.clone().has_index(request(&rpc::HAS_INDEX, index)).await)?.has_index {
            return Ok(());
        }
        let chunks = manifest_chunks(manifest).await.map_err(|status| self.remote.error(&status))?;
        let in_use: Vec<Part> = in_use.iter().cloned().map(Part::InUse).collect();
        let parts = std::iter::once(Part::Key(key.to_owned())).chain(in_use).chain(chunks.map(Part::Data));
        let parts = stream::iter(parts.map(|part| wire::IndexChunk { part: Some(part) }));
        let stored = self.client.clone().store_index(request(&rpc::STORE_INDEX, parts)).await;
        self.response(stored).map(|_| ())
    }

    async fn load_index(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        let index = wire::IndexRef { key: key.to_owned(), reference: reference.to_owned() };
        let chunks = self.response(self.client.clone().get_index(request(&rpc::GET_INDEX, index)).await)?;
        receive_manifest(&self.remote, chunks).await
    }
}
