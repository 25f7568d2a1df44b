//! The HTTP client of object stores, which checks each request with a guard, counts it, and checks its response.

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use crate::client_builder::{build_client, client_error};
use crate::guard::{GuardError, RequestGuard, find_guard_error};
use crate::object::store_checksum::ChecksumRequest;
use crate::requests::{parse_retry_after, record_response};
use crate::responses::ExpectedResponse;
use crate::throttling::{StoreKind, count_request};

/// Creates guarded clients.
#[derive(Debug)]
pub(crate) struct GuardedConnector {
    pub(crate) guard: RequestGuard,
    /// The kind of the store, for metrics.
    pub(crate) store: StoreKind,
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = build_client(options, Some(&self.guard)).map_err(client_error)?;
        Ok(HttpClient::new(GuardedClient { client, guard: self.guard.clone(), store: self.store }))
    }
}

/// An HTTP client that checks and counts each request, and checks its response.
#[derive(Debug)]
struct GuardedClient {
    client: reqwest::Client,
    guard: RequestGuard,
    store: StoreKind,
}

#[async_trait]
impl HttpService for GuardedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.guard.check(&request.uri().to_string()).map_err(permanent_error)?;
        let checksum_request = request.extensions().get::<ChecksumRequest>().cloned();
        let expected = ExpectedResponse::new(&request);
        let response = HttpService::call(&self.client, request).await;
        let status = response.as_ref().ok().map(|response| response.status().as_u16());
        let headers = response.as_ref().ok().map(|response| response.headers());
        let header = |name: &str| headers.and_then(|headers| headers.get(name)?.to_str().ok());
        let retry_after = header("retry-after").and_then(|value| parse_retry_after(value, header("date")));
        count_request(self.store, status);
        record_response(status, retry_after);
        if let (Some(checksum_request), Ok(response)) = (checksum_request, &response) {
            checksum_request.record(self.store, response.status(), response.headers());
        }
        // A host that the guard rejects looks like a failed resolution, which would be retried.
        let response = response.map_err(|error| match find_guard_error(&error) {
            Some(found) => permanent_error(found.clone()),
            None => error,
        })?;
        expected.check(response).await
    }
}

/// An HTTP error that is not retried.
fn permanent_error(error: GuardError) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}
