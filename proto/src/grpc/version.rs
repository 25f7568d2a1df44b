//! What every request carries: the protocol version, which every server checks, and the client's token.

use std::sync::Arc;

use feedline_access::{Bearer, Credentials};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use http::HeaderMap;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::PROTOCOL_VERSION;

/// Metadata key of the version.
pub(super) const KEY: &str = "feedline-protocol";

/// Metadata key of the token, as everywhere on the web.
const AUTHORIZATION: &str = "authorization";
/// What stands before the token.
const BEARER: &str = "Bearer ";

/// Adds the version and the token to a client's requests.
#[derive(Debug, Clone)]
pub(super) struct VersionInterceptor {
    version: MetadataValue<Ascii>,
    token: Option<Arc<Bearer>>,
}

impl VersionInterceptor {
    /// Speaks this version and shows this token.
    pub(super) fn new(version: u32, credentials: &Credentials) -> Self {
        Self { version: version.into(), token: credentials.token.clone() }
    }
}

impl Interceptor for VersionInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(KEY, self.version.clone());
        if let Some(token) = &self.token {
            let shown = format!("{BEARER}{}", token.token()).parse::<MetadataValue<Ascii>>();
            let mut shown =
                shown.map_err(|_| Status::unauthenticated("the token is no line of letters and digits"))?;
            shown.set_sensitive(true);
            request.metadata_mut().insert(AUTHORIZATION, shown);
        }
        Ok(request)
    }
}

/// Refuses requests of another version.
#[derive(Debug, Clone)]
pub(super) struct VersionCheck {
    /// What the server is, for the message.
    pub(super) role: &'static str,
}

impl Interceptor for VersionCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        check_version(self.role, request.metadata().as_ref())?;
        Ok(request)
    }
}

/// Refuses a request with these headers where it is of another version.
pub(super) fn check_version(role: &str, headers: &HeaderMap) -> Result<(), Status> {
    let spoken = headers.get(KEY).and_then(|version| version.to_str().ok());
    match spoken {
        Some(version) if version.parse() == Ok(PROTOCOL_VERSION) => Ok(()),
        Some(version) => Err(Status::failed_precondition(format!(
            "the client speaks protocol {version}, this {role} speaks {PROTOCOL_VERSION}; use the same release on both"
        ))),
        None => Err(Status::failed_precondition(format!(
            "the request has no metadata `{KEY}`; this {role} speaks {PROTOCOL_VERSION}"
        ))),
    }
}

/// The token that a request with these headers shows.
///
/// # Errors
/// When what it shows is no token.
pub fn shown_token(headers: &HeaderMap) -> Result<Option<&str>, ServiceError> {
    let Some(shown) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let token = shown.to_str().ok().and_then(|shown| shown.strip_prefix(BEARER));
    let denied = || {
        ServiceError::new(
            ServiceErrorKind::Denied,
            "the metadata `authorization` has no token; send `Bearer TOKEN`",
        )
    };
    token.map(Some).ok_or_else(denied)
}
