//! The services through real loopback connections.

mod doors;
mod fake;
mod links;
mod members;
mod ways;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::service::Routes;

use self::fake::{FakeCoordinator, FakeWorker, Seen};
use super::*;
use crate::convert::samples;
use crate::local::ReceivePath;
use crate::services::{FetchOpen, FetchRequest, Frame};

/// Far beyond what anything here takes: a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time that open streams have at the end.
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

/// A worker that serves the given batch; what it sees comes out of the receiver.
async fn worker(batch: Bytes) -> (Running, Arc<dyn WorkerService>, mpsc::Receiver<Seen>) {
    let (seen, seen_by_test) = mpsc::channel(16);
    let server = start(worker_routes(Arc::new(FakeWorker { batch, seen }))).await;
    let client = connect_worker(&server.url, &Credentials::default()).unwrap();
    (server, client, seen_by_test)
}

fn open(credit_bytes: u64) -> FetchOpen {
    FetchOpen { job: JobId(1), split: samples::split(), from: 3, credit_bytes, ticket: "t".to_owned() }
}

/// Requests that the test sends one by one. Dropping the sender ends them.
fn requests(open: FetchOpen) -> (mpsc::Sender<FetchRequest>, BoxStream<'static, FetchRequest>) {
    let (sender, receiver) = mpsc::channel(16);
    let later = tokio_stream::wrappers::ReceiverStream::new(receiver);
    (sender, stream::once(async { FetchRequest::Open(open) }).chain(later).boxed())
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it must not hang")
}

#[tokio::test]
async fn every_coordinator_request_comes_through() {
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
    assert_eq!(client.places(JobId(1), samples::step()).await, Ok(samples::group_places()));
    assert_eq!(client.manifest(JobId(1)).await.unwrap().as_ref(), &samples::manifest());
}

#[tokio::test]
async fn a_manifest_of_many_chunks_comes_through() {
    let (_server, client) = coordinator().await;
    let manifest = within(client.manifest(JobId(fake::LARGE))).await.unwrap();
    assert_eq!(manifest.as_ref(), &fake::large_manifest());
    assert!(crate::encode_manifest(&manifest).len() > 3 * MANIFEST_CHUNK_BYTES);
}

#[tokio::test]
async fn a_refusal_keeps_its_kind_and_sentence() {
    let (_server, client) = coordinator().await;
    let kinds = [
        ServiceErrorKind::Invalid,
        ServiceErrorKind::NotFound,
        ServiceErrorKind::Superseded,
        ServiceErrorKind::Unavailable,
    ];
    for (job, kind) in (fake::FIRST_REFUSED..).zip(kinds) {
        let expected = fake::refusal(kind);
        assert_eq!(client.cancel_job(JobId(job)).await, Err(expected.clone()));
        assert_eq!(client.manifest(JobId(job)).await.map(|_| ()), Err(expected));
    }
    let busy = ServiceError::busy("it runs as many jobs as it may", 1_500);
    assert_eq!(client.cancel_job(JobId(fake::BUSY)).await, Err(busy), "with the time to wait");
}

#[test]
fn a_message_that_is_too_large_is_no_lack_of_room() {
    let peer = channel::RemoteName::new("coordinator", "http://c", &Credentials::default());
    let refusal = peer.refusal(&tonic::Status::resource_exhausted("too large"));
    assert_eq!((refusal.kind, refusal.retry_after_ms), (ServiceErrorKind::Invalid, None));
}

#[tokio::test]
async fn a_long_sentence_is_cut() {
    let status = refusal::to_status(ServiceError::new(ServiceErrorKind::Invalid, "é".repeat(5000)));
    assert_eq!(status.message().len(), (2 << 10) + 4);
    let (_server, client) = coordinator().await;
    let refusal = client.cancel_job(JobId(fake::LONG)).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    assert_eq!(refusal.message, status.message());
}

#[tokio::test]
async fn a_fetch_with_several_pieces_and_credit_comes_through() {
    let batch: Bytes = (0..3_000_000_u32).map(|place| place as u8).collect::<Vec<u8>>().into();
    let (_server, client, mut seen) = worker(batch.clone()).await;
    let (credit, requests) = requests(open(1));
    let mut frames = within(client.fetch(requests)).await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Request(FetchRequest::Open(open(1)))));
    assert_eq!(within(frames.next()).await, Some(Ok(Frame::Schema(fake::schema()))));
    for piece in 0..3 {
        let Some(Ok(Frame::Piece(header))) = within(frames.next()).await else { panic!("no piece {piece}") };
        assert_eq!(header, fake::piece(piece, batch.len() as u64));
        let mut place = 0;
        while place < batch.len() {
            let Some(Ok(Frame::Chunk { offset, data })) = within(frames.next()).await else {
                panic!("no chunk at {place}")
            };
            assert_eq!(offset, place as u64);
            assert!(data.len() <= MAX_CHUNK_BYTES);
            assert_eq!(data, batch.slice(place..place + data.len()));
            place += data.len();
        }
        // The fake worker sends the next piece only when there is credit for it.
        credit.send(FetchRequest::Credit { bytes: 10 + u64::from(piece) }).await.unwrap();
        let given = Seen::Request(FetchRequest::Credit { bytes: 10 + u64::from(piece) });
        assert_eq!(within(seen.recv()).await, Some(given));
    }
    assert_eq!(within(frames.next()).await, Some(Ok(Frame::End)));
    assert_eq!(within(frames.next()).await, None);
}

#[tokio::test]
async fn a_fetch_may_be_refused() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    let refused = FetchOpen { job: JobId(fake::FIRST_REFUSED), ..open(1) };
    let result = client.fetch(stream::iter([FetchRequest::Open(refused)]).boxed()).await;
    assert_eq!(result.map(|_| ()), Err(fake::refusal(ServiceErrorKind::NotFound)));
    let result = client.fetch(stream::iter([FetchRequest::Credit { bytes: 1 }]).boxed()).await;
    let refusal = result.map(|_| ()).unwrap_err();
    assert_eq!(refusal.message, "a fetch begins with what to open, not with credit");
    let result = client.fetch(stream::empty().boxed()).await;
    assert_eq!(result.map(|_| ()).unwrap_err().kind, ServiceErrorKind::Invalid);
}

#[tokio::test]
async fn the_worker_notices_that_a_client_stopped_fetching() {
    let (_server, client, mut seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Request(FetchRequest::Open(open(1)))));
    assert!(within(frames.next()).await.unwrap().is_ok());
    drop(frames);
    let dropped = Instant::now();
    assert_eq!(within(seen.recv()).await, Some(Seen::Dropped));
    assert!(dropped.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn another_protocol_version_is_refused() {
    let (server, _) = coordinator().await;
    let said = |role: &str| {
        format!(
            "the client speaks protocol 1, this {role} speaks {PROTOCOL_VERSION}; use the same release on both"
        )
    };
    let client = connect_coordinator_with_version(&server.url, &Credentials::default(), 1).unwrap();
    let message = said("coordinator");
    let refusal = ServiceError::new(ServiceErrorKind::Invalid, message);
    assert_eq!(client.list_jobs().await, Err(refusal.clone()));
    assert_eq!(client.manifest(JobId(1)).await.map(|_| ()), Err(refusal));
    let (server, ..) = worker(Bytes::new()).await;
    let client = connect_worker_with_version(&server.url, 1).unwrap();
    let (_credit, requests) = requests(open(1));
    let message = said("worker");
    let refusal = ServiceError::new(ServiceErrorKind::Invalid, message);
    assert_eq!(client.fetch(requests).await.map(|_| ()), Err(refusal));
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_within_two_seconds() {
    // A port that was free a moment ago, and an address that drops what is sent to it.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{free}"), "http://192.0.2.1:7070".to_owned()] {
        let asked = Instant::now();
        let refusal =
            connect_coordinator(&url, &Credentials::default()).unwrap().list_jobs().await.unwrap_err();
        assert_eq!(refusal.kind, ServiceErrorKind::Unavailable, "{refusal}");
        let start = format!("cannot reach coordinator at {url}: ");
        assert!(refusal.message.starts_with(&start) && refusal.message.len() > start.len(), "{refusal}");
        assert!(asked.elapsed() < Duration::from_secs(2));
        let (_credit, requests) = requests(open(1));
        let refusal = connect_worker(&url, &Credentials::default())
            .unwrap()
            .fetch(requests)
            .await
            .map(|_| ())
            .unwrap_err();
        assert_eq!(refusal.kind, ServiceErrorKind::Unavailable);
        assert!(refusal.message.starts_with(&format!("cannot reach worker at {url}: ")), "{refusal}");
    }
}

#[tokio::test]
async fn a_client_finds_a_server_that_came_back() {
    let (mut server, client) = coordinator().await;
    assert_eq!(client.cancel_job(JobId(1)).await, Ok(()));
    server.stop.take().unwrap().send(()).unwrap();
    within(server.task).await.unwrap().unwrap();
    assert_eq!(within(client.cancel_job(JobId(1))).await.unwrap_err().kind, ServiceErrorKind::Unavailable);
    let listener = TcpListener::bind(server.url.trim_start_matches("http://")).await.unwrap();
    let routes = coordinator_routes(Arc::new(FakeCoordinator));
    let task = tokio::spawn(serve(listener, routes, std::future::pending()));
    let answered = async {
        // A request may still meet the lost connection; the next ones must not.
        while client.cancel_job(JobId(1)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(answered).await;
    task.abort();
}

#[tokio::test]
async fn a_server_that_is_dropped_cuts_its_streams() {
    let (server, client, mut seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert!(within(frames.next()).await.unwrap().is_ok());
    server.task.abort();
    let refusal = within(frames.try_collect::<Vec<_>>()).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Unavailable);
    assert!(refusal.message.starts_with("cannot reach worker at http://127.0.0.1:"), "{refusal}");
    assert_eq!(seen.recv().await, Some(Seen::Request(FetchRequest::Open(open(1)))));
    assert_eq!(within(seen.recv()).await, Some(Seen::Dropped));
}

#[tokio::test]
async fn a_stopping_server_ends_though_a_stream_is_open() {
    let (mut server, client, _seen) = worker(Bytes::from_static(b"batch")).await;
    let (_credit, requests) = requests(open(1));
    let mut frames = client.fetch(requests).await.unwrap();
    assert!(within(frames.next()).await.unwrap().is_ok());
    let told = Instant::now();
    server.stop.take().unwrap().send(()).unwrap();
    within(server.task).await.unwrap().unwrap();
    assert!((GRACE..4 * GRACE).contains(&told.elapsed()), "the time that it was told: {:?}", told.elapsed());
    assert!(within(frames.try_collect::<Vec<_>>()).await.is_err());
}

#[tokio::test]
async fn what_is_no_address_is_refused() {
    for (url, fix) in [
        ("nonsense", "write it as http://HOST:PORT or https://HOST:PORT"),
        ("ftp://host:1", "write it as http://HOST:PORT or https://HOST:PORT"),
        ("", "write it as http://HOST:PORT or https://HOST:PORT"),
    ] {
        let refusal = connect_coordinator(url, &Credentials::default()).map(|_| ()).unwrap_err();
        assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
        assert_eq!(refusal.message, format!("`{url}` is no coordinator's address; {fix}"));
    }
}

#[test]
fn without_a_runtime_it_is_refused() {
    let refusal = connect_worker("http://127.0.0.1:1", &Credentials::default()).map(|_| ()).unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
}
