//! The protocol version that every request carries and every server checks.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::PROTOCOL_VERSION;

/// Metadata key of the version.
pub(super) const KEY: &str = "feedline-protocol";

/// Adds the version to a client's requests.
#[derive(Debug, Clone)]
pub(super) struct Speak(MetadataValue<Ascii>);

impl Speak {
    /// Speaks this version.
    pub(super) fn new(version: u32) -> Self {
        Self(version.into())
    }
}

impl Interceptor for Speak {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(KEY, self.0.clone());
        Ok(request)
    }
}

/// Refuses requests of another version.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// What the server is, for the message.
    pub(super) role: &'static str,
}

impl Interceptor for Demand {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Self { role } = self;
        let spoken = request.metadata().get(KEY).and_then(|version| version.to_str().ok());
        match spoken {
            Some(version) if version.parse() == Ok(PROTOCOL_VERSION) => Ok(request),
            Some(version) => Err(Status::failed_precondition(format!(
                "the client speaks protocol {version}, this {role} speaks {PROTOCOL_VERSION}; use the same release on both"
            ))),
            None => Err(Status::failed_precondition(format!(
                "the request has no metadata `{KEY}`; this {role} speaks {PROTOCOL_VERSION}"
            ))),
        }
    }
}
