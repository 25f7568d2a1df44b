//! The gRPC server of a coordinator's peer service.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::auth_service::authenticated_service;
use super::errors::to_status;
use super::introduction::{decode_introduction, encode_introduction};
use super::manifest_stream::manifest_chunks;
use crate::convert::dataset::decode_manifest;
use crate::rpc::MAX_CONTROL_BYTES;
use crate::services::PeerService;
use crate::wire;
use crate::wire::index_chunk::Part;
use crate::wire::peer_server::Peer;

/// Maximum number of references to indexes in one request. A cluster has fewer jobs.
const MAX_INDEXES_IN_USE: usize = 100_000;

/// Serves the peer service that the authenticator put into the request.
pub(super) struct PeerAdapter;

/// The peer service with the rights of the caller.
fn service<T>(request: &Request<T>) -> Result<Arc<dyn PeerService>, Status> {
    authenticated_service(request)
}

#[async_trait]
impl Peer for PeerAdapter {
    type GetIndexStream = BoxStream<'static, Result<wire::ManifestChunk, Status>>;

    async fn introduce(
        &self,
        request: Request<wire::Introduction>,
    ) -> Result<Response<wire::Introduction>, Status> {
        let service = service(&request)?;
        let from = decode_introduction(request.into_inner());
        let own = service.introduce(from).await.map_err(to_status)?;
        Ok(Response::new(encode_introduction(own)))
    }

    async fn join(
        &self,
        request: Request<wire::Introduction>,
    ) -> Result<Response<wire::JoinResponse>, Status> {
        let service = service(&request)?;
        service.join(decode_introduction(request.into_inner())).await.map_err(to_status)?;
        Ok(Response::new(wire::JoinResponse {}))
    }

    async fn deliver(
        &self,
        request: Request<wire::RaftMessages>,
    ) -> Result<Response<wire::DeliverResponse>, Status> {
        let service = service(&request)?;
        let wire::RaftMessages { messages, sender } = request.into_inner();
        let sender = decode_introduction(sender.unwrap_or_default());
        service.deliver(sender, messages).await.map_err(to_status)?;
        Ok(Response::new(wire::DeliverResponse {}))
    }

    async fn has_index(
        &self,
        request: Request<wire::IndexRef>,
    ) -> Result<Response<wire::HasIndexResponse>, Status> {
        let service = service(&request)?;
        let wire::IndexRef { key, reference } = request.into_inner();
        let has_index = service.load_index(&key, &reference).await.is_ok();
        Ok(Response::new(wire::HasIndexResponse { has_index }))
    }

    async fn store_index(
        &self,
        request: Request<Streaming<wire::IndexChunk>>,
    ) -> Result<Response<wire::StoreIndexResponse>, Status> {
        let service = service(&request)?;
        let mut chunks = request.into_inner();
        let (mut key, mut in_use, mut bytes) = (String::new(), Vec::new(), Vec::new());
        while let Some(chunk) = chunks.message().await? {
            match chunk.part {
                Some(Part::Key(name)) => key = name,
                Some(Part::InUse(reference)) if in_use.len() < MAX_INDEXES_IN_USE => in_use.push(reference),
                Some(Part::InUse(_)) => {
                    return Err(Status::invalid_argument(format!(
                        "jobs use more than {MAX_INDEXES_IN_USE} indexes of one source"
                    )));
                }
                Some(Part::Data(data)) if bytes.len() + data.len() <= MAX_CONTROL_BYTES => {
                    bytes.extend_from_slice(&data)
                }
                Some(Part::Data(_)) => {
                    let limit = MAX_CONTROL_BYTES >> 20;
                    return Err(Status::invalid_argument(format!("the index is larger than {limit} MiB")));
                }
                None => {}
            }
        }
        let manifest = tokio::task::spawn_blocking(move || decode_manifest(&bytes))
            .await
            .map_err(|error| Status::unavailable(format!("cannot decode the index: {error}")))?
            .map_err(Status::invalid_argument)?;
        service.store_index(&key, Arc::new(manifest), &in_use).await.map_err(to_status)?;
        Ok(Response::new(wire::StoreIndexResponse {}))
    }

    async fn get_index(
        &self,
        request: Request<wire::IndexRef>,
    ) -> Result<Response<Self::GetIndexStream>, Status> {
        let service = service(&request)?;
        let wire::IndexRef { key, reference } = request.into_inner();
        let manifest = service.load_index(&key, &reference).await.map_err(to_status)?;
        let chunks = manifest_chunks(manifest).await?;
        Ok(Response::new(stream::iter(chunks.map(|data| Ok(wire::ManifestChunk { data }))).boxed()))
    }
}
