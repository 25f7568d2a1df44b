//! Tests of the services over real loopback connections.

mod authentication;
mod fake;
mod gather;
mod links;
mod members;
mod names;
mod transports;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::service::Routes;

use feedline_access::Credentials;

use self::fake::{FakeCoordinator, FakeWorker, WorkerEvent};
use super::settings::{MANIFEST_CHUNK_BYTES, MAX_CHUNK_BYTES};
use super::*;
use crate::PROTOCOL_VERSION;
use crate::authenticator::Authenticators;
use crate::convert::samples;
use crate::local::{LocalListener, ReceivePath, Transport};
use crate::services::{CoordinatorService, FetchOpen, FetchRequest, Frame, PeerService, WorkerService};

/// Timeout that is longer than every test, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Grace time of open streams at shutdown.
const GRACE: Duration = Duration::from_secs(1);

struct Running {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start(routes: Routes) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(serve(listener, routes, async {
        let _ = stopped.await;
        tokio::time::Instant::now() + GRACE
    }));
    Running { url, stop: Some(stop), task }
}

async fn coordinator() -> (Running, Arc<dyn CoordinatorService>) {
    let server = start(coordinator_routes(Arc::new(FakeCoordinator))).await;
    let client = connect_coordinator(&server.url, &Credentials::default()).unwrap();
    (server, client)
}

/// Starts a worker that serves a batch. The receiver returns its events.
async fn worker(batch: Bytes) -> (Running, Arc<dyn WorkerService>, mpsc::Receiver<WorkerEvent>) {
    let (seen, seen_by_test) = mpsc::channel(16);
    let server = start(worker_routes(Arc::new(FakeWorker { batch, seen }))).await;
    let client = connect_worker(&server.url, &Credentials::default()).unwrap();
    (server, client, seen_by_test)
}

fn open(credit_bytes: u64) -> FetchOpen {
    FetchOpen {
        job: JobId(1),
        split: samples::split(),
        start_offset: 3,
        credit_bytes,
        ticket: "t".to_owned(),
        cached_features: Vec::new(),
    }
}

/// Returns a stream of requests that starts with `open`. The test sends the other requests, and ends the stream by dropping
/// the sender.
fn requests(open: FetchOpen) -> (mpsc::Sender<FetchRequest>, BoxStream<'static, FetchRequest>) {
    let (sender, receiver) = mpsc::channel(16);
    let later = tokio_stream::wrappers::ReceiverStream::new(receiver);
    (sender, stream::once(async { FetchRequest::Open(open) }).chain(later).boxed())
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it must not hang")
}

#[tokio::test]
async fn every_coordinator_request_reaches_the_service() {
    let (_server, client) = coordinator().await;
    assert_eq!(client.open_job(samples::spec()).await, Ok(JobId(16)));
    assert_eq!(client.cancel_job(JobId(1)).await, Ok(()));
    assert_eq!(client.job_details(JobId(1)).await, Ok(samples::job_details()));
    assert_eq!(client.job_status(JobId(1)).await, Ok(samples::job_status()));
    assert_eq!(client.list_jobs().await, Ok(vec![samples::job_status(); 2]));
    assert_eq!(client.cluster().await, Ok(samples::cluster_view()));
    assert_eq!(client.sync_worker(samples::worker_report()).await, Ok(samples::worker_plan()));
    assert_eq!(client.sync_consumer(samples::consumer_report()).await, Ok(samples::consumer_plan()));
    let weights = samples::mix_change().weights;
    assert_eq!(client.set_weights(JobId(1), weights).await, Ok(samples::mix_change()));
    assert_eq!(client.positions(JobId(1), samples::step()).await, Ok(samples::group_positions()));
    assert_eq!(client.manifest(JobId(1)).await.unwrap().as_ref(), &samples::manifest());
}

#[tokio::test]
async fn a_manifest_of_many_chunks_is_received() {
    let (_server, client) = coordinator().await;
    let manifest = within(client.manifest(JobId(fake::LARGE))).await.unwrap();
    assert_eq!(manifest.as_ref(), &fake::large_manifest());
    assert!(crate::encode_manifest(&manifest).len() > 3 * MANIFEST_CHUNK_BYTES);
}

#[tokio::test]
async fn an_error_keeps_its_kind_and_message() {
    let (_server, client) = coordinator().await;
    let kinds = [
        ServiceErrorKind::Invalid,
        ServiceErrorKind::NotFound,
        ServiceErrorKind::Superseded,
        ServiceErrorKind::Unavailable,
    ];
    for (job, kind) in (fake::FIRST_FAILING..).zip(kinds) {
        let expected = fake::error(kind);
        assert_eq!(client.cancel_job(JobId(job)).await, Err(expected.clone()));
        assert_eq!(client.manifest(JobId(job)).await.map(|_| ()), Err(expected));
    }
    let busy = ServiceError::busy("the limit of running jobs is reached", 1_500);
    assert_eq!(client.cancel_job(JobId(fake::BUSY)).await, Err(busy), "with the time until a retry");
}

#[test]
fn a_message_that_is_too_large_is_invalid_not_busy() {
    let remote = channel::RemoteName::new("coordinator", "http://c", &Credentials::default());
    let error = remote.error(&tonic::Status::resource_exhausted("too large"));
    assert_eq!((error.kind, error.retry_after_ms), (ServiceErrorKind::Invalid, None));
}

#[tokio::test]
async fn a_long_message_is_truncated() {
    let status = to_status(ServiceError::new(ServiceErrorKind::Invalid, "é".repeat(5000)));
    assert_eq!(status.message().len(), (2 << 10) + 4);
    let (_server, client) = coordinator().await;
    let error = client.cancel_job(JobId(fake::LONG)).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
    assert_eq!(error.message, status.message());
}

#[tokio::test]
async fn a_fetch_of_several_pieces_with_credit_is_received() {
    let batch: Bytes = (0..3_000_000_u32).map(|index| index as u8).collect::<Vec<u8>>().into();
    let (_server, client, mut seen) = worker(batch.clone()).await;
    let (credit, requests) = requests(open(1));
    let mut frames = within(client.fetch(requests)).await.unwrap();
    assert_eq!(seen.recv().await, Some(WorkerEvent::Request(FetchRequest::Open(open(1)))));
    assert_eq!(within(frames.next()).await, Some(Ok(Frame::Schema(fake::schema()))));
    for piece in 0..3 {
        let Some(Ok(Frame::Piece(header))) = within(frames.next()).await else { panic!("no piece {piece}") };
        assert_eq!(header, fake::piece(piece, batch.len() as u64));
        let mut position = 0;
        while position < batch.len() {
            let Some(Ok(Frame::Chunk { offset, data })) = within(frames.next()).await else {
                panic!("no chunk at {position}")
            };
            assert_eq!(offset, position as u64);
            assert!(data.len() <= MAX_CHUNK_BYTES);
            assert_eq!(data, batch.slice(position..position + data.len()));
            position += data.len();
        }
        // The fake worker sends the next piece after a credit.
        credit.send(FetchRequest::Credit { bytes: 10 + u64::from(piece) }).await.unwrap();
        let granted = WorkerEvent::Request(FetchRequest::Credit { bytes: 10 + u64::from(piece) });
        assert_eq!(within(seen.recv()).await, Some(granted));
    }
    assert_eq!(within(frames.next()).await, Some(Ok(Frame::End)));
    assert_eq!(within(frames.next()).await, None);
}

#[tokio::test]
async fn a_rejected_fetch_returns_the_error() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    let failing = FetchOpen { job: JobId(fake::FIRST_FAILING), ..open(1) };
    let result = client.fetch(stream::iter([FetchRequest::Open(failing)]).boxed()).await;
    assert_eq!(result.map(|_| ()), Err(fake::error(ServiceErrorKind::NotFound)));
    let result = client.fetch(stream::iter([FetchRequest::Credit { bytes: 1 }]).boxed()).await;
    let error = result.map(|_| ()).unwrap_err();
    assert_eq!(error.message, "the first request of a fetch must open a split, not grant credit");
    let result = client.fetch(stream::empty().boxed()).await;
    assert_eq!(result.map(|_| ()).unwrap_err().kind, ServiceErrorKind::Invalid);
}

#[tokio::test]
async fn a_client_that_drops_a_fetch_ends_it_at_the_worker() {
    let (_server, client, mut seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert_eq!(seen.recv().await, Some(WorkerEvent::Request(FetchRequest::Open(open(1)))));
    assert!(within(frames.next()).await.unwrap().is_ok());
    drop(frames);
    let dropped = Instant::now();
    assert_eq!(within(seen.recv()).await, Some(WorkerEvent::Dropped));
    assert!(dropped.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn another_protocol_version_is_rejected_as_unavailable() {
    let (server, _) = coordinator().await;
    let expected = |role: &str| {
        format!(
            "the client uses protocol version 1, but this {role} uses version {PROTOCOL_VERSION}; use the same release on both sides"
        )
    };
    let client = connect_coordinator_with_version(&server.url, &Credentials::default(), 1).unwrap();
    let error = ServiceError::version_mismatch(expected("coordinator"));
    assert_eq!(error.kind, ServiceErrorKind::Unavailable);
    assert_eq!(client.list_jobs().await, Err(error.clone()));
    assert_eq!(client.manifest(JobId(1)).await.map(|_| ()), Err(error));
    let (server, ..) = worker(Bytes::new()).await;
    let client = connect_worker_with_version(&server.url, 1).unwrap();
    let (_credit, requests) = requests(open(1));
    let error = ServiceError::version_mismatch(expected("worker"));
    assert_eq!(client.fetch(requests).await.map(|_| ()), Err(error));
}

#[test]
fn a_rejection_by_an_earlier_release_is_a_version_mismatch() {
    let remote = channel::RemoteName::new("coordinator", "http://c", &Credentials::default());
    let status = tonic::Status::failed_precondition("the client uses protocol version 3, but ...");
    assert_eq!(remote.error(&status), ServiceError::version_mismatch(status.message()));
    let unavailable = remote.error(&tonic::Status::unavailable("no leader"));
    assert!(!unavailable.is_version_mismatch);
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_within_two_seconds() {
    // A closed port, and an address that drops all packets.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{free}"), "http://192.0.2.1:7070".to_owned()] {
        let started = Instant::now();
        let error =
            connect_coordinator(&url, &Credentials::default()).unwrap().list_jobs().await.unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Unavailable, "{error}");
        let start = format!("cannot reach coordinator at {url}: ");
        assert!(error.message.starts_with(&start) && error.message.len() > start.len(), "{error}");
        // Without the timeout of two seconds, the system would try for two minutes.
        assert!(started.elapsed() < Duration::from_secs(30));
        let (_credit, requests) = requests(open(1));
        let error = connect_worker(&url, &Credentials::default())
            .unwrap()
            .fetch(requests)
            .await
            .map(|_| ())
            .unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Unavailable);
        assert!(error.message.starts_with(&format!("cannot reach worker at {url}: ")), "{error}");
    }
}

#[tokio::test]
async fn a_client_reconnects_to_a_restarted_server() {
    let (mut server, client) = coordinator().await;
    assert_eq!(client.cancel_job(JobId(1)).await, Ok(()));
    server.stop.take().unwrap().send(()).unwrap();
    within(server.task).await.unwrap().unwrap();
    assert_eq!(within(client.cancel_job(JobId(1))).await.unwrap_err().kind, ServiceErrorKind::Unavailable);
    let listener = TcpListener::bind(server.url.trim_start_matches("http://")).await.unwrap();
    let routes = coordinator_routes(Arc::new(FakeCoordinator));
    let task = tokio::spawn(serve(listener, routes, std::future::pending()));
    let answered = async {
        // The first request may still use the lost connection.
        while client.cancel_job(JobId(1)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(answered).await;
    task.abort();
}

#[tokio::test]
async fn a_dropped_server_closes_its_streams() {
    let (server, client, mut seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert!(within(frames.next()).await.unwrap().is_ok());
    server.task.abort();
    let error = within(frames.try_collect::<Vec<_>>()).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Unavailable);
    assert!(error.message.starts_with("cannot reach worker at http://127.0.0.1:"), "{error}");
    assert_eq!(seen.recv().await, Some(WorkerEvent::Request(FetchRequest::Open(open(1)))));
    assert_eq!(within(seen.recv()).await, Some(WorkerEvent::Dropped));
}

#[tokio::test]
async fn a_server_with_an_open_stream_stops_at_the_deadline() {
    let (mut server, client, _seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert!(within(frames.next()).await.unwrap().is_ok());
    let stopped = Instant::now();
    server.stop.take().unwrap().send(()).unwrap();
    within(server.task).await.unwrap().unwrap();
    assert!(stopped.elapsed() >= GRACE, "{:?}", stopped.elapsed());
    assert!(within(frames.try_collect::<Vec<_>>()).await.is_err());
}

#[tokio::test]
async fn an_invalid_address_is_rejected() {
    for url in ["nonsense", "ftp://host:1", ""] {
        let error = connect_coordinator(url, &Credentials::default()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Invalid);
        assert_eq!(
            error.message,
            format!("invalid coordinator address `{url}`: expected http://HOST:PORT or https://HOST:PORT")
        );
    }
}

#[test]
fn a_connection_without_a_tokio_runtime_is_rejected() {
    let error = connect_worker("http://127.0.0.1:1", &Credentials::default()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
}
