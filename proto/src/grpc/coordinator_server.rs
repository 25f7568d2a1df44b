//! The gRPC server of a coordinator: decodes each request, calls the service, and encodes the reply.

use std::sync::Arc;

use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::{ConsumerReport, JobSpec, WorkerReport};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, async_trait};

use super::auth_service::authenticated_service;
use super::errors::{to_status, unreadable};
use super::manifest_stream::manifest_chunks;
use crate::convert::Wire;
use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService, coordinator_rpcs};
use crate::wire;
use crate::wire::coordinator_server::Coordinator;
use crate::wire::members_server::Members;

/// Serves the service that the authenticator put into the request.
pub(super) struct CoordinatorAdapter;

/// The service with the rights of the caller.
fn service<T>(request: &Request<T>) -> Result<Arc<dyn CoordinatorService>, Status> {
    authenticated_service(request)
}

/// Returns the status for a call whose service returned the reply to a different request.
fn wrong_reply() -> Status {
    Status::internal("the coordinator returned an unexpected reply; please report this bug")
}

/// The body of a method of the gRPC server: decodes the request, calls the service, and encodes the reply.
macro_rules! answer {
    ($received:ident, $name:ident, ($($arg:ident: $type:ty),*), $out:ident) => {{
        let service = service(&$received)?;
        let ($($arg,)*) = <($($type,)*)>::from_wire($received.into_inner(), "request").map_err(unreadable)?;
        match service.call(CoordinatorRequest::$name { $($arg),* }).await.map_err(to_status)? {
            CoordinatorReply::$name(reply) => {
                let message: wire::$out = reply.into_wire();
                Ok(Response::new(message))
            }
            _ => Err(wrong_reply()),
        }
    }};
}

/// Implements the gRPC server, with one method for each row of the table.
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
                received: Request<wire::JobRef>,
            ) -> Result<Response<Self::GetManifestStream>, Status> {
                let service = service(&received)?;
                let job = JobId::from_wire(received.into_inner(), "request").map_err(unreadable)?;
                let manifest = service.manifest(job).await.map_err(to_status)?;
                let chunks = manifest_chunks(manifest).await?;
                Ok(Response::new(stream::iter(chunks.map(|data| Ok(wire::ManifestChunk { data }))).boxed()))
            }

            $(async fn $c_method(
                &self,
                received: Request<wire::$c_in>,
            ) -> Result<Response<wire::$c_out>, Status> {
                answer!(received, $c_name, ($($c_arg: $c_type),*), $c_out)
            })*
        }

        #[async_trait]
        impl Members for CoordinatorAdapter {
            $(async fn $m_method(
                &self,
                received: Request<wire::$m_in>,
            ) -> Result<Response<wire::$m_out>, Status> {
                answer!(received, $m_name, ($($m_arg: $m_type),*), $m_out)
            })*
        }
    };
}

coordinator_rpcs!(serve);
