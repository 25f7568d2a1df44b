//! Resolves the source of a profile to credentials: assumes roles with the security token service (STS).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ClientOptions;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use url::Url;

use super::credential::{CredentialError, ExpiringCredential, ProfileSource};
use super::process::{self, parse_time};
use crate::credentials_client::CredentialsConnector;
use crate::response_body::read_body;

/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// The codes of errors after which a request is sent again.
const BUSY_CODES: [&str; 4] =
    ["Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError"];

/// The security token service of a region.
#[derive(Debug, Clone)]
pub(crate) struct RoleService {
    endpoint: String,
    region: String,
    client: HttpClient,
}

impl RoleService {
    /// Creates a client. `endpoint` replaces the endpoint of the region.
    pub(crate) fn new(
        endpoint: Option<String>,
        region: &str,
        options: &ClientOptions,
    ) -> object_store::Result<Self> {
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://sts.{region}.{domain}"));
        let client = CredentialsConnector.connect(options)?;
        Ok(Self { endpoint, region: region.to_owned(), client })
    }

    /// Gets the credentials of a source.
    ///
    /// # Errors
    /// Returns an error without secrets.
    pub(super) fn resolve<'a>(
        &'a self,
        source: &'a ProfileSource,
    ) -> BoxFuture<'a, Result<ExpiringCredential, CredentialError>> {
        // The future of a role contains the future of its source.
        async move { self.resolve_one(source).await }.boxed()
    }

    async fn resolve_one(&self, source: &ProfileSource) -> Result<ExpiringCredential, CredentialError> {
        match source {
            ProfileSource::Static { key_id, secret_key, token } => {
                let (key_id, secret_key, token) = (key_id.clone(), secret_key.clone(), token.clone());
                let credential = Arc::new(AwsCredential { key_id, secret_key, token });
                Ok(ExpiringCredential { credential, expires_at: None })
            }
            ProfileSource::Process { command } => {
                process::run_with_retries(command).await.map_err(CredentialError::permanent)
            }
            ProfileSource::Role { role_arn, session_name, external_id, source } => {
                let source = self.resolve(source).await?;
                let assumed =
                    self.assume(role_arn, session_name, external_id.as_deref(), &source.credential).await;
                assumed.map_err(|error| CredentialError {
                    reason: format!("cannot assume the role {role_arn}: {}", error.reason),
                    ..error
                })
            }
            ProfileSource::WebIdentity { .. } => Err(CredentialError::permanent(
                "the client of the store assumes roles for web identity tokens",
            )),
        }
    }

    async fn assume(
        &self,
        role_arn: &str,
        session_name: &str,
        external_id: Option<&str>,
        credential: &AwsCredential,
    ) -> Result<ExpiringCredential, CredentialError> {
        let invalid =
            || CredentialError::permanent("the endpoint of STS is not a URL: check AWS_ENDPOINT_URL_STS");
        let unavailable = |reason: String| CredentialError {
            reason: format!("STS is not available ({reason}): check its endpoint and the network"),
            is_retryable: true,
        };
        let mut url = Url::parse(&self.endpoint).map_err(|_| invalid())?;
        let fixed = [("Action", "AssumeRole"), ("Version", "2011-06-15")];
        let given = [("RoleArn", role_arn), ("RoleSessionName", session_name)];
        let external = external_id.map(|id| ("ExternalId", id));
        url.query_pairs_mut().extend_pairs(fixed.into_iter().chain(given).chain(external));
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(|_| invalid())?;
        AwsAuthorizer::new(credential, "sts", &self.region).try_authorize(&mut request, None).map_err(
            |error| CredentialError::permanent(format!("cannot sign the request to STS: {error}")),
        )?;
        let response = self.client.execute(request).await.map_err(|error| unavailable(error.to_string()))?;
        let status = response.status();
        let body = read_body(response.into_body().bytes_stream(), MAX_RESPONSE_BYTES).await;
        let body = body.map_err(|error| unavailable(error.to_string()))?;
        // A longer response is not that of STS.
        let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
        if !status.is_success() {
            let code = element(&text, "Code").unwrap_or_default();
            let is_busy = status.is_server_error()
                || matches!(status.as_u16(), 408 | 429)
                || BUSY_CODES.contains(&code);
            if is_busy {
                return Err(unavailable(format!("{status} {code}")));
            }
            return Err(CredentialError::permanent(format!(
                "STS responded with {status} {code}: allow the source profile to call sts:AssumeRole"
            )));
        }
        let missing =
            || CredentialError::permanent("STS responded without credentials: check the endpoint of STS");
        parse(&text).ok_or_else(missing)
    }
}

/// Parses the response of STS.
fn parse(text: &str) -> Option<ExpiringCredential> {
    let credential = AwsCredential {
        key_id: element(text, "AccessKeyId")?.to_owned(),
        secret_key: element(text, "SecretAccessKey")?.to_owned(),
        token: Some(element(text, "SessionToken")?.to_owned()),
    };
    let expires_at = Some(parse_time(element(text, "Expiration")?)?);
    Some(ExpiringCredential { credential: Arc::new(credential), expires_at })
}

/// Returns the text of the first element with this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_of_sts_is_parsed() {
        let text = "<AssumeRoleResponse><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>S</SecretAccessKey>\
                    <SessionToken> T </SessionToken><Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResponse>";
        let found = parse(text).unwrap();
        assert_eq!(found.credential.token.as_deref(), Some("T"));
        assert!(found.expires_at.is_some());
        for end in 0..text.len() - "</Expiration></Credentials></AssumeRoleResponse>".len() {
            assert!(parse(&text[..end]).is_none());
        }
    }
}
