//! Tells clients the addresses of a worker's local sockets over TCP.

use std::path::Path;

use tonic::{Request, Response, Status, async_trait};

use crate::local::LocalEndpoint;
use crate::wire;
use crate::wire::local_transport_server::LocalTransport;

/// Returns one local endpoint to every caller.
pub(super) struct LocalListenerAdapter(pub(super) LocalEndpoint);

#[async_trait]
impl LocalTransport for LocalListenerAdapter {
    async fn locate(
        &self,
        _: Request<wire::LocateRequest>,
    ) -> Result<Response<wire::LocateResponse>, Status> {
        let LocalEndpoint { boot_id, socket, memory_socket } = &self.0;
        let text = |path: &Path| path.display().to_string();
        Ok(Response::new(wire::LocateResponse {
            boot_id: boot_id.clone(),
            socket: text(socket),
            memory_socket: memory_socket.as_deref().map(text).unwrap_or_default(),
        }))
    }
}
