//! A coordinator's answers to the others, behind gRPC.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::auth_service::entered;
use super::coordinator_server::chunks;
use super::refusal::to_status;
use crate::convert::dataset::{decode_manifest, encode_manifest};
use crate::rpc::MAX_CONTROL_BYTES;
use crate::services::{MemberInfo, PeerService};
use crate::wire;
use crate::wire::index_chunk::Part;
use crate::wire::peer_server::Peer;

/// Serves a coordinator's answers to the others.
pub(super) struct PeerAdapter;

/// The service, for another coordinator.
fn peer<T>(request: &Request<T>) -> Result<Arc<dyn PeerService>, Status> {
    entered(request)
}

#[async_trait]
impl Peer for PeerAdapter {
    type GetIndexStream = BoxStream<'static, Result<wire::ManifestChunk, Status>>;

    async fn introduce(
        &self,
        request: Request<wire::Introduction>,
    ) -> Result<Response<wire::Introduction>, Status> {
        let service = peer(&request)?;
        let wire::Introduction { id, has_state } = request.into_inner();
        let answer = service.introduce(MemberInfo { id, has_state }).await.map_err(to_status)?;
        Ok(Response::new(wire::Introduction { id: answer.id, has_state: answer.has_state }))
    }

    async fn deliver(
        &self,
        request: Request<wire::RaftMessages>,
    ) -> Result<Response<wire::DeliverResponse>, Status> {
        peer(&request)?.deliver(request.into_inner().messages).await.map_err(to_status)?;
        Ok(Response::new(wire::DeliverResponse {}))
    }

    async fn has_index(
        &self,
        request: Request<wire::IndexRef>,
    ) -> Result<Response<wire::HasIndexResponse>, Status> {
        let service = peer(&request)?;
        let wire::IndexRef { key, fingerprint } = request.into_inner();
        let has = service.index(&key, &fingerprint).await.is_ok();
        Ok(Response::new(wire::HasIndexResponse { has }))
    }

    async fn keep_index(
        &self,
        request: Request<Streaming<wire::IndexChunk>>,
    ) -> Result<Response<wire::KeepIndexResponse>, Status> {
        let service = peer(&request)?;
        let mut chunks = request.into_inner();
        let (mut key, mut bytes) = (String::new(), Vec::new());
        while let Some(chunk) = chunks.message().await? {
            match chunk.part {
                Some(Part::Key(name)) => key = name,
                Some(Part::Data(data)) if bytes.len() + data.len() <= MAX_CONTROL_BYTES => {
                    bytes.extend_from_slice(&data)
                }
                Some(Part::Data(_)) => {
                    return Err(Status::invalid_argument("the index is too large for this coordinator"));
                }
                None => {}
            }
        }
        let manifest = tokio::task::spawn_blocking(move || decode_manifest(&bytes))
            .await
            .map_err(|error| Status::unavailable(format!("reading the index: {error}")))?
            .map_err(Status::invalid_argument)?;
        service.keep_index(&key, Arc::new(manifest)).await.map_err(to_status)?;
        Ok(Response::new(wire::KeepIndexResponse {}))
    }

    async fn get_index(
        &self,
        request: Request<wire::IndexRef>,
    ) -> Result<Response<Self::GetIndexStream>, Status> {
        let service = peer(&request)?;
        let wire::IndexRef { key, fingerprint } = request.into_inner();
        let manifest = service.index(&key, &fingerprint).await.map_err(to_status)?;
        let bytes = tokio::task::spawn_blocking(move || encode_manifest(&manifest))
            .await
            .map_err(|error| Status::unavailable(format!("writing the index: {error}")))?;
        Ok(Response::new(stream::iter(chunks(bytes.into())).boxed()))
    }
}
