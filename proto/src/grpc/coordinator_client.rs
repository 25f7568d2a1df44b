//! A remote coordinator over gRPC.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::channel::{RemoteName, connect_lazily, request};
use super::manifest_stream::receive_manifest;
use super::version::VersionInterceptor;
use crate::PROTOCOL_VERSION;
use crate::convert::Wire;
use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService, coordinator_rpcs};
use crate::wire;
use crate::wire::coordinator_client::CoordinatorClient;
use crate::wire::members_client::MembersClient;

/// Returns a client of the coordinator at `url`, such as `http://10.0.0.1:7070`. The client connects at its first request
/// and reconnects after a lost connection. Call it inside a tokio runtime.
///
/// # Errors
/// Returns `Invalid` for a malformed address, or if the connection would send the token without encryption. An unreachable
/// coordinator fails the first request.
pub fn connect_coordinator(
    url: &str,
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    connect_coordinator_with_version(url, credentials, PROTOCOL_VERSION)
}

/// Like [`connect_coordinator`], with this version of the protocol.
///
/// # Errors
/// Returns the errors of [`connect_coordinator`].
pub fn connect_coordinator_with_version(
    url: &str,
    credentials: &Credentials,
    version: u32,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    let remote = RemoteName::new("coordinator", url, credentials);
    let channel = connect_lazily(&remote, credentials)?;
    let channel = InterceptedService::new(channel, VersionInterceptor::new(version, credentials));
    Ok(Arc::new(RemoteCoordinator { remote, channel }))
}

/// A remote coordinator.
struct RemoteCoordinator {
    remote: RemoteName,
    channel: InterceptedService<Channel, VersionInterceptor>,
}

impl RemoteCoordinator {
    fn response<W>(&self, response: Result<Response<W>, Status>) -> Result<W, ServiceError> {
        self.remote.response(response).map(Response::into_inner)
    }

    fn reply<W, T: Wire<W>>(&self, response: Result<Response<W>, Status>) -> Result<T, ServiceError> {
        T::from_wire(self.response(response)?, "reply").map_err(|error| self.remote.unreadable(&error))
    }
}

/// Creates the gRPC client of a service, which accepts messages as large as the RPC allows.
macro_rules! client {
    ($remote:ident, $rpc:ident, Coordinator) => {
        CoordinatorClient::new($remote.channel.clone()).max_decoding_message_size($rpc.max_response.bytes())
    };
    ($remote:ident, $rpc:ident, Members) => {
        MembersClient::new($remote.channel.clone()).max_decoding_message_size($rpc.max_response.bytes())
    };
}

/// Implements the service: one arm for each row of the table.
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
            async fn call(&self, called: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
                let rpc = called.rpc();
                match called {
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
                        let chunks = self.response(response)?;
                        receive_manifest(&self.remote, chunks).await.map(CoordinatorReply::GetManifest)
                    }
                    $(CoordinatorRequest::$l_name { .. } => Err(ServiceError::new(
                        ServiceErrorKind::Denied,
                        concat!(stringify!($l_name), " is not available over the network; call OpenJob"),
                    )),)*
                }
            }
        }
    };
}

coordinator_rpcs!(send);
