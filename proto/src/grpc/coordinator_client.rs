//! A remote coordinator over gRPC.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::channel::RemoteName;
use super::version::VersionInterceptor;
use crate::convert::WireError;
use crate::convert::dataset::decode_manifest;
use crate::rpc::{
    CoordinatorReply, CoordinatorRequest, CoordinatorService, FromWire, IntoWire, REQUEST_DEADLINE, Rpc,
    coordinator_rpcs,
};
use crate::wire;
use crate::wire::coordinator_client::CoordinatorClient;
use crate::wire::members_client::MembersClient;

/// A remote coordinator.
pub(super) struct RemoteCoordinator {
    peer: RemoteName,
    channel: InterceptedService<Channel, VersionInterceptor>,
}

impl RemoteCoordinator {
    pub(super) fn new(peer: RemoteName, channel: Channel, version: VersionInterceptor) -> Self {
        Self { peer, channel: InterceptedService::new(channel, version) }
    }

    fn response<W>(&self, response: Result<Response<W>, Status>) -> Result<W, ServiceError> {
        response.map(Response::into_inner).map_err(|status| self.peer.refusal(&status))
    }

    fn reply<W, T: FromWire<W>>(&self, response: Result<Response<W>, Status>) -> Result<T, ServiceError> {
        T::from_wire(self.response(response)?).map_err(|error| self.peer.unreadable(&error))
    }
}

/// A message that is sent under the rules of its RPC.
pub(super) fn request<T>(rpc: &Rpc, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(deadline) = rpc.deadline {
        request.set_timeout(deadline);
    }
    request
}

/// Puts a manifest's chunks together.
pub(super) async fn read_manifest(
    peer: &RemoteName,
    mut chunks: Streaming<wire::ManifestChunk>,
) -> Result<Arc<Manifest>, ServiceError> {
    let mut bytes = Vec::new();
    loop {
        let chunk = tokio::time::timeout(REQUEST_DEADLINE, chunks.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
            .map_err(|status| peer.refusal(&status))?;
        match chunk {
            Some(chunk) => bytes.extend_from_slice(&chunk.data),
            None => break,
        }
    }
    tokio::task::spawn_blocking(move || decode_manifest(&bytes))
        .await
        .map_err(|error| {
            ServiceError::new(ServiceErrorKind::Unavailable, format!("reading the manifest: {error}"))
        })?
        .map(Arc::new)
        .map_err(|message| peer.unreadable(&WireError(message)))
}

/// The gRPC client of a service, for messages as large as the RPC's rules allow.
macro_rules! client {
    ($remote:ident, $rpc:ident, Coordinator) => {
        CoordinatorClient::new($remote.channel.clone()).max_decoding_message_size($rpc.max_response.bytes())
    };
    ($remote:ident, $rpc:ident, Members) => {
        MembersClient::new($remote.channel.clone()).max_decoding_message_size($rpc.max_response.bytes())
    };
}

/// The client's answer to each row.
macro_rules! send {
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
        local Process { $($(#[$l_doc:meta])* $l_name:ident { $($l_rest:tt)* })* }
    ) => {
        #[async_trait]
        impl CoordinatorService for RemoteCoordinator {
            async fn call(&self, asked: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
                let rpc = asked.rpc();
                match asked {
                    $(CoordinatorRequest::$c_name { $($c_arg),* } => {
                        let message: wire::$c_in = ($($c_arg,)*).into_wire();
                        let response = client!(self, rpc, Coordinator).$c_method(request(rpc, message)).await;
                        self.reply(response).map(CoordinatorReply::$c_name)
                    })*
                    $(CoordinatorRequest::$m_name { $($m_arg),* } => {
                        let message: wire::$m_in = ($($m_arg,)*).into_wire();
                        let response = client!(self, rpc, Members).$m_method(request(rpc, message)).await;
                        self.reply(response).map(CoordinatorReply::$m_name)
                    })*
                    CoordinatorRequest::GetManifest { job } => {
                        let message: wire::JobRef = (job,).into_wire();
                        let response = client!(self, rpc, Coordinator).get_manifest(request(rpc, message)).await;
                        read_manifest(&self.peer, self.response(response)?).await.map(CoordinatorReply::GetManifest)
                    }
                    $(CoordinatorRequest::$l_name { .. } => Err(ServiceError::new(
                        ServiceErrorKind::Denied,
                        concat!(stringify!($l_name), " is not offered over the network; call OpenJob"),
                    )),)*
                }
            }
        }
    };
}

coordinator_rpcs!(send);
