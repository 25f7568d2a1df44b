//! Tests that authentication happens before a message is read, and that a message larger than its method allows is rejected.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::members::FakeMember;
use super::*;
use crate::authenticator::Authenticator;
use crate::grpc::fetch_server::FetchServer;
use crate::wire;

/// Accepts the tokens `worker` and `client`; only `worker` may send large messages.
struct FakeAuthenticator(Arc<FakeMember>);

impl FakeAuthenticator {
    fn check(token: Option<&str>) -> Result<(), ServiceError> {
        match token {
            Some("worker" | "client") => Ok(()),
            _ => Err(ServiceError::new(ServiceErrorKind::Denied, "unknown token")),
        }
    }
}

impl Authenticator<dyn CoordinatorService> for FakeAuthenticator {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
        Self::check(token)?;
        Ok(Arc::clone(&self.0) as _)
    }

    fn allows_large_messages(&self, token: Option<&str>) -> bool {
        token == Some("worker")
    }
}

impl Authenticator<dyn PeerService> for FakeAuthenticator {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<dyn PeerService>, ServiceError> {
        Self::check(token)?;
        Ok(Arc::clone(&self.0) as _)
    }
}

async fn start_authenticated() -> Running {
    let fake = Arc::new(FakeAuthenticator(Arc::default()));
    start(member_routes(Authenticators { coordinator: fake.clone(), peer: fake })).await
}

fn with_token(token: &str) -> Credentials {
    Credentials {
        token: Some(Arc::new(feedline_access::BearerToken::fixed(token))),
        ..Credentials::default()
    }
}

/// Sends a request without a message and returns the status of the response.
async fn status_without_message(server: &Running, path: &'static str) -> Code {
    let channel = Endpoint::from_shared(server.url.clone()).unwrap().connect_lazy();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let mut request = Request::new(stream::pending::<wire::JobRef>());
    request.metadata_mut().insert(version::PROTOCOL_KEY, PROTOCOL_VERSION.into());
    let codec = ProstCodec::<wire::JobRef, wire::JobRef>::default();
    let answer = client.client_streaming(request, PathAndQuery::from_static(path), codec);
    within(answer).await.unwrap_err().code()
}

#[tokio::test]
async fn a_caller_without_a_token_is_rejected_before_its_message_is_read() {
    let server = start_authenticated().await;
    for path in [
        "/feedline.v1.Coordinator/SyncWorker",
        "/feedline.v1.Coordinator/OpenJob",
        "/feedline.v1.Peer/Deliver",
        "/feedline.v1.Peer/StoreIndex",
        "/feedline.v1.Members/AddMember",
    ] {
        assert_eq!(status_without_message(&server, path).await, Code::PermissionDenied, "{path}");
    }
}

#[tokio::test]
async fn a_message_larger_than_its_method_allows_is_rejected() {
    let server = start_authenticated().await;
    let too_large = |error: ServiceError| {
        assert_eq!(error.kind, ServiceErrorKind::Invalid, "{error}");
        assert!(error.message.contains("too large"), "{error}");
    };
    let members = connect_coordinator(&server.url, &with_token("client")).unwrap();
    assert!(members.add_member(&"x".repeat(60 << 10)).await.is_ok());
    too_large(members.add_member(&"x".repeat(65 << 10)).await.unwrap_err());
    let client = connect_coordinator(&server.url, &with_token("client")).unwrap();
    let named = |bytes: usize| {
        let name = "x".repeat(bytes);
        feedline_data::messages::JobSpec { name, ..samples::spec() }
    };
    assert_eq!(client.open_job(named(3 << 20)).await, Ok(JobId(5)));
    too_large(client.open_job(named(5 << 20)).await.unwrap_err());
    // The large message of a worker reaches the service, which rejects it for another reason.
    let report =
        || feedline_data::messages::WorkerReport { machine: "x".repeat(5 << 20), ..samples::worker_report() };
    too_large(client.sync_worker(report()).await.unwrap_err());
    let worker = connect_coordinator(&server.url, &with_token("worker")).unwrap();
    assert_eq!(worker.sync_worker(report()).await.unwrap_err().kind, ServiceErrorKind::Unavailable);
}

/// A body that never yields data.
struct Silent;

impl http_body::Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_without_a_first_request_times_out() {
    let (seen, _seen) = mpsc::channel(1);
    let mut server = FetchServer::new(Arc::new(FakeWorker { batch: Bytes::new(), seen }), None);
    let request = http::Request::builder().uri(crate::rpc::FETCH.path).body(Body::new(Silent)).unwrap();
    let begun = tokio::time::Instant::now();
    let answer = server.call(request).await.unwrap();
    let status = tonic::Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("did not arrive within 5 s"), "{}", status.message());
    assert!(begun.elapsed() < Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn a_unary_request_whose_body_does_not_arrive_times_out() {
    let mut routes = coordinator_routes(Arc::new(FakeCoordinator));
    let request = http::Request::builder()
        .method("POST")
        .uri("/feedline.v1.Coordinator/ListJobs")
        .header("content-type", "application/grpc")
        .header(crate::grpc::version::PROTOCOL_KEY, PROTOCOL_VERSION.to_string())
        .body(Body::new(Silent))
        .unwrap();
    let begun = tokio::time::Instant::now();
    let answer = routes.call(request).await.unwrap();
    let status = tonic::Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("did not arrive within 30 s"), "{}", status.message());
    assert!(begun.elapsed() < Duration::from_secs(31));
}

#[tokio::test]
async fn a_large_fetch_request_is_rejected() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    let large = FetchOpen { ticket: "x".repeat(65 << 10), ..open(1) };
    let fetched = client.fetch(stream::iter([FetchRequest::Open(large)]).boxed()).await;
    let error = fetched.map(|_| ()).unwrap_err();
    assert!(error.message.contains("too large"), "{error}");
}
