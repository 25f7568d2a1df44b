//! Metadata of every request: the protocol version, which every server checks, and the token of the client.

use std::sync::Arc;

use feedline_access::{BearerToken, Credentials};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use http::HeaderMap;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Code, Request, Status};

/// Metadata key of the protocol version. In a response, it marks the rejection of another version.
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
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionCheck {
    /// Role of the server, for error messages.
    pub(super) role: &'static str,
    /// Protocol version of the server.
    pub(super) version: u32,
}

impl VersionCheck {
    /// Rejects a request with a different protocol version. The rejection contains the version of the server.
    pub(super) fn check(self, headers: &HeaderMap) -> Result<(), Status> {
        let Self { role, version } = self;
        let client = headers.get(PROTOCOL_KEY).and_then(|version| version.to_str().ok());
        let message = match client {
            Some(client) if client.parse() == Ok(version) => return Ok(()),
            Some(client) => format!(
                "the client uses protocol version {client}, but this {role} uses version {version}; use the same release on both sides"
            ),
            None => {
                return Err(Status::failed_precondition(format!(
                    "the request lacks the metadata `{PROTOCOL_KEY}`; this {role} uses protocol version {version}"
                )));
            }
        };
        let mut status = Status::unavailable(message);
        status.metadata_mut().insert(PROTOCOL_KEY, version.into());
        Err(status)
    }
}

impl Interceptor for VersionCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.check(request.metadata().as_ref())?;
        Ok(request)
    }
}

/// Whether a status is the rejection of another protocol version. Releases without the marker in the metadata use a code that
/// nothing else uses.
pub(super) fn is_version_mismatch(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition || status.metadata().get(PROTOCOL_KEY).is_some()
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
