//! Tells clients over TCP where a worker's local sockets are.

use tonic::{Request, Response, Status, async_trait};

use crate::local::LocalEndpoint;
use crate::wire;
use crate::wire::entrance_server::Entrance;

/// Answers with one place.
pub(super) struct LocalListenerAdapter(pub(super) LocalEndpoint);

#[async_trait]
impl Entrance for LocalListenerAdapter {
    async fn locate(
        &self,
        _: Request<wire::LocateRequest>,
    ) -> Result<Response<wire::LocateResponse>, Status> {
        let LocalEndpoint { host, socket, memory_socket } = &self.0;
        let path = |path: &std::path::PathBuf| path.display().to_string();
        Ok(Response::new(wire::LocateResponse {
            host: host.clone(),
            socket: path(socket),
            memory_socket: memory_socket.as_ref().map(path).unwrap_or_default(),
        }))
    }
}
