//! A coordinator's gRPC server: decodes each request, calls the service, encodes the reply.

use std::sync::Arc;

use bytes::Bytes;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::{ConsumerReport, JobSpec, WorkerReport};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, async_trait};

use super::MANIFEST_CHUNK_BYTES;
use super::auth_service::entered;
use super::refusal::{to_status, unreadable};
use crate::convert::dataset::encode_manifest;
use crate::rpc::{
    CoordinatorReply, CoordinatorRequest, CoordinatorService, FromWire, IntoWire, coordinator_rpcs,
};
use crate::wire;
use crate::wire::coordinator_server::Coordinator;
use crate::wire::members_server::Members;

/// Serves the service that the authenticator put into the request.
pub(super) struct CoordinatorAdapter;

/// The service with the rights of the caller.
fn service<T>(request: &Request<T>) -> Result<Arc<dyn CoordinatorService>, Status> {
    entered(request)
}

/// A service that answered one request with the reply to another.
fn wrong_reply() -> Status {
    Status::internal("the coordinator sent a reply of the wrong kind; please report this")
}

/// One method of a gRPC server.
macro_rules! answer {
    ($asked:ident, $name:ident, ($($arg:ident: $type:ty),*), $out:ident) => {{
        let service = service(&$asked)?;
        let ($($arg,)*) = <($($type,)*)>::from_wire($asked.into_inner()).map_err(unreadable)?;
        match service.call(CoordinatorRequest::$name { $($arg),* }).await.map_err(to_status)? {
            CoordinatorReply::$name(reply) => {
                let message: wire::$out = reply.into_wire();
                Ok(Response::new(message))
            }
            _ => Err(wrong_reply()),
        }
    }};
}

/// The methods of all rows.
macro_rules! serve {
    (
        unary Coordinator { $($(#[$c_doc:meta])* $c_name:ident {
            call: $c_call:ident($($c_arg:ident: $c_type:ty),*) -> $c_reply:ty,
            wire: $c_method:ident($c_in:ident) -> $c_out:ident, $($c_rest:tt)*
        })* }
        unary Members { $($(#[$m_doc:meta])* $m_name:ident {
            call: $m_call:ident($($m_arg:ident: $m_type:ty),*) -> $m_reply:ty,
            wire: $m_method:ident($m_in:ident) -> $m_out:ident, $($m_rest:tt)*
        })* }
        stream Coordinator { $(#[$s_doc:meta])* GetManifest { $($s_rest:tt)* } }
        $($rest:tt)*
    ) => {
        #[async_trait]
        impl Coordinator for CoordinatorAdapter {
            type GetManifestStream = BoxStream<'static, Result<wire::ManifestChunk, Status>>;

            async fn get_manifest(
                &self,
                asked: Request<wire::JobRef>,
            ) -> Result<Response<Self::GetManifestStream>, Status> {
                send_manifest(asked).await
            }

            $(async fn $c_method(
                &self,
                asked: Request<wire::$c_in>,
            ) -> Result<Response<wire::$c_out>, Status> {
                answer!(asked, $c_name, ($($c_arg: $c_type),*), $c_out)
            })*
        }

        #[async_trait]
        impl Members for CoordinatorAdapter {
            $(async fn $m_method(
                &self,
                asked: Request<wire::$m_in>,
            ) -> Result<Response<wire::$m_out>, Status> {
                answer!(asked, $m_name, ($($m_arg: $m_type),*), $m_out)
            })*
        }
    };
}

coordinator_rpcs!(serve);

async fn send_manifest(
    asked: Request<wire::JobRef>,
) -> Result<Response<BoxStream<'static, Result<wire::ManifestChunk, Status>>>, Status> {
    let service = service(&asked)?;
    let manifest = service.manifest(JobId::from_wire(asked.into_inner()).map_err(unreadable)?).await;
    let manifest = manifest.map_err(to_status)?;
    let bytes = tokio::task::spawn_blocking(move || encode_manifest(&manifest))
        .await
        .map_err(|error| Status::unavailable(format!("writing the manifest: {error}")))?;
    Ok(Response::new(stream::iter(chunks(bytes.into())).boxed()))
}

pub(super) fn chunks(bytes: Bytes) -> impl Iterator<Item = Result<wire::ManifestChunk, Status>> {
    (0..bytes.len()).step_by(MANIFEST_CHUNK_BYTES).map(move |start| {
        let end = bytes.len().min(start + MANIFEST_CHUNK_BYTES);
        Ok(wire::ManifestChunk { data: bytes.slice(start..end) })
    })
}
