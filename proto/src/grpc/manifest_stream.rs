//! Manifests as streams of chunks.

use std::sync::Arc;

use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tonic::{Status, Streaming};

use super::channel::RemoteName;
use super::settings::MANIFEST_CHUNK_BYTES;
use crate::convert::WireError;
use crate::convert::dataset::{decode_manifest, encode_manifest};
use crate::rpc::REQUEST_DEADLINE;
use crate::wire;

/// Encodes a manifest on a thread that may block, and returns its chunks.
pub(super) async fn manifest_chunks(
    manifest: Arc<Manifest>,
) -> Result<impl Iterator<Item = Bytes> + Send + 'static, Status> {
    let bytes: Bytes = tokio::task::spawn_blocking(move || encode_manifest(&manifest))
        .await
        .map_err(|error| Status::unavailable(format!("cannot encode the manifest: {error}")))?
        .into();
    Ok((0..bytes.len()).step_by(MANIFEST_CHUNK_BYTES).map(move |start| {
        let end = bytes.len().min(start + MANIFEST_CHUNK_BYTES);
        bytes.slice(start..end)
    }))
}

/// Computes the id of an index on a thread that may block.
pub(super) async fn index_id(manifest: Arc<Manifest>) -> Result<String, Status> {
    tokio::task::spawn_blocking(move || manifest.index_id())
        .await
        .map_err(|error| Status::unavailable(format!("cannot compute the id of the index: {error}")))
}

/// Receives all chunks of a manifest and decodes it.
pub(super) async fn receive_manifest(
    remote: &RemoteName,
    mut chunks: Streaming<wire::ManifestChunk>,
) -> Result<Arc<Manifest>, ServiceError> {
    let mut bytes = Vec::new();
    loop {
        let chunk = tokio::time::timeout(REQUEST_DEADLINE, chunks.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
            .map_err(|status| remote.error(&status))?;
        match chunk {
            Some(chunk) => bytes.extend_from_slice(&chunk.data),
            None => break,
        }
    }
    tokio::task::spawn_blocking(move || decode_manifest(&bytes))
        .await
        .map_err(|error| {
            let message = format!("cannot decode the manifest: {error}");
            ServiceError::new(ServiceErrorKind::Unavailable, message)
        })?
        .map(Arc::new)
        .map_err(|message| remote.unreadable(&WireError(message)))
}
