//! Metadata of every request: the protocol version, which every server checks, and the token of the client.

use std::sync::Arc;

use feedline_access::{BearerToken, Credentials};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use http::HeaderMap;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::PROTOCOL_VERSION;

/// Metadata key of the protocol version.
pub(super) const PROTOCOL_KEY: &str = "feedline-protocol";

/// Metadata key of the token.
const AUTHORIZATION: &str = "authorization";
/// Prefix of the token in its metadata.
const BEARER: &str = "Bearer ";

/// Adds the version and the token to a client's requests.
#[derive(Debug, Clone)]
pub(super) struct VersionInterceptor {
    version: MetadataValue<Ascii>,
    token: Option<Arc<BearerToken>>,
}

impl VersionInterceptor {
    /// Sends this version, and the token of the credentials.
    pub(super) fn new(version: u32, credentials: &Credentials) -> Self {
        Self { version: version.into(), token: credentials.token.clone() }
    }
}

impl Interceptor for VersionInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(PROTOCOL_KEY, self.version.clone());
        if let Some(token) = &self.token {
            let value = format!("{BEARER}{}", token.token()).parse::<MetadataValue<Ascii>>();
            let mut value = value.map_err(|_| {
                Status::unauthenticated("invalid token: expected one line of letters and digits")
            })?;
            value.set_sensitive(true);
            request.metadata_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// Rejects requests with a different protocol version.
#[derive(Debug, Clone)]
pub(super) struct VersionCheck {
    /// Role of the server, for error messages.
    pub(super) role: &'static str,
}

impl Interceptor for VersionCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        check_version(self.role, request.metadata().as_ref())?;
        Ok(request)
    }
}

/// Rejects a request with a different protocol version.
pub(super) fn check_version(role: &str, headers: &HeaderMap) -> Result<(), Status> {
    let version = headers.get(PROTOCOL_KEY).and_then(|version| version.to_str().ok());
    match version {
        Some(version) if version.parse() == Ok(PROTOCOL_VERSION) => Ok(()),
        Some(version) => Err(Status::failed_precondition(format!(
            "the client uses protocol version {version}, but this {role} uses version {PROTOCOL_VERSION}; use the same release on both sides"
        ))),
        None => Err(Status::failed_precondition(format!(
            "the request lacks the metadata `{PROTOCOL_KEY}`; this {role} uses protocol version {PROTOCOL_VERSION}"
        ))),
    }
}

/// Returns the token of a request with these headers.
///
/// # Errors
/// Returns `Denied` for malformed `authorization` metadata.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, ServiceError> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| text.strip_prefix(BEARER));
    let denied = || {
        ServiceError::new(
            ServiceErrorKind::Denied,
            "invalid metadata `authorization`: expected `Bearer TOKEN`",
        )
    };
    token.map(Some).ok_or_else(denied)
}
