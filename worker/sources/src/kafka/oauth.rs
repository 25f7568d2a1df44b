//! Requests OAuth tokens with the client credentials of an OpenID Connect provider.

use std::sync::Arc;
use std::time::Duration;

use feedline_kafka::{AccessToken, ConnectionSettings, TokenSource};
use reqwest::header::CONTENT_TYPE;
use tokio::runtime::Handle;
use url::form_urlencoded;

use crate::client_builder::plain_builder;
use crate::response_body::read_body;

/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The lifetime of a token whose provider does not state it.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// A token endpoint with the credentials of a client.
struct TokenEndpoint {
    url: String,
    client_id: String,
    client_secret: String,
    scope: Option<String>,
    client: reqwest::Client,
    runtime: Handle,
}

/// Returns the source of the tokens; `None` if the settings do not use OAuth.
///
/// # Errors
/// Returns a message without secrets if a file cannot be read, or without a runtime.
pub(super) fn token_source(settings: &ConnectionSettings) -> Result<Option<Arc<dyn TokenSource>>, String> {
    let Some((url, client_id, client_secret, scope)) = settings.oauth() else { return Ok(None) };
    let mut builder = plain_builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
    if let Some(path) = settings.option("kafka_oauth_ca_file") {
        let pem = std::fs::read(path)
            .map_err(|error| format!("cannot read `kafka_oauth_ca_file` {path}: {error}"))?;
        let certificate = reqwest::Certificate::from_pem(&pem)
            .map_err(|_| format!("`kafka_oauth_ca_file` {path} is not a certificate in PEM form"))?;
        builder = builder.tls_certs_merge([certificate]);
    }
    let client =
        builder.build().map_err(|error| format!("cannot create the HTTP client for tokens: {error}"))?;
    let runtime = Handle::try_current().map_err(|_| "OAuth tokens need a running worker".to_owned())?;
    Ok(Some(Arc::new(TokenEndpoint {
        url: url.to_owned(),
        client_id: client_id.to_owned(),
        client_secret: client_secret.to_owned(),
        scope: scope.map(str::to_owned),
        client,
        runtime,
    })))
}

impl TokenSource for TokenEndpoint {
    fn token(&self) -> Result<AccessToken, String> {
        self.runtime.block_on(self.request())
    }
}

impl TokenEndpoint {
    async fn request(&self) -> Result<AccessToken, String> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        form.extend_pairs(self.scope.as_deref().map(|scope| ("scope", scope)));
        let request = self
            .client
            .post(&self.url)
            .basic_auth(&self.client_id, Some(&self.client_secret))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form.finish());
        // The error of a request contains its URL, but neither headers nor body.
        let response =
            request.send().await.map_err(|error| format!("the token endpoint does not answer: {error}"))?;
        let status = response.status();
        let body = read_body(response.bytes_stream(), MAX_RESPONSE_BYTES)
            .await
            .map_err(|error| format!("the token endpoint does not answer: {error}"))?;
        if !status.is_success() {
            return Err(format!("the token endpoint {} rejects the client with status {status}", self.url));
        }
        let Some(body) = body else {
            return Err(format!(
                "the token endpoint {} returned more than {MAX_RESPONSE_BYTES} bytes",
                self.url
            ));
        };
        parse_token(&body)
            .ok_or_else(|| format!("the token endpoint {} returned no `access_token`", self.url))
    }
}

fn parse_token(body: &[u8]) -> Option<AccessToken> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let token = body.get("access_token")?.as_str()?.to_owned();
    let expires_in = body.get("expires_in").and_then(serde_json::Value::as_u64);
    Some(AccessToken { token, expires_in: expires_in.map_or(DEFAULT_LIFETIME, Duration::from_secs) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_parsed() {
        let token = parse_token(br#"{"access_token": "t", "expires_in": 60}"#).unwrap();
        assert_eq!((token.token.as_str(), token.expires_in), ("t", Duration::from_secs(60)));
        assert_eq!(parse_token(br#"{"access_token": "t"}"#).unwrap().expires_in, DEFAULT_LIFETIME);
        assert!(parse_token(b"{}").is_none() && parse_token(b"<html>").is_none());
    }
}
