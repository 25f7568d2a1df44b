//! The HTTP client that fetches credentials of object stores.

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};

use crate::client_builder::{build_client, client_error};
use crate::responses::ExpectedResponse;

/// Creates clients without a guard, which fetch credentials and may read from the machine's metadata service.
#[derive(Debug)]
pub(crate) struct CredentialsConnector;

impl HttpConnector for CredentialsConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = build_client(options, None).map_err(client_error)?;
        Ok(HttpClient::new(CredentialsClient { client }))
    }
}

/// An HTTP client that fetches credentials.
#[derive(Debug)]
struct CredentialsClient {
    client: reqwest::Client,
}

#[async_trait]
impl HttpService for CredentialsClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let expected = ExpectedResponse::new(&request);
        expected.check(HttpService::call(&self.client, request).await?).await
    }
}
