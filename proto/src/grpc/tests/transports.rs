//! Tests of fetches over every transport between processes of one host, and of the fallback to TCP.

use std::sync::Mutex;

use tonic::Status;
use tonic::transport::Channel;

use super::*;
use crate::convert::Wire;
use crate::grpc::channel::RemoteName;
use crate::grpc::framing::ReceivedMessage;
use crate::grpc::{channel, fetch_client};
use crate::local::{LocalEndpoint, ShmClient};
use crate::wire;

/// A worker with a TCP listener and a local listener.
pub(super) struct LocalWorker {
    pub(super) url: String,
    _folder: tempfile::TempDir,
    tasks: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves `batch`. `change` edits the endpoint that clients receive.
pub(super) async fn start_local_worker(
    batch: &Bytes,
    memory: Option<u64>,
    change: impl FnOnce(&mut LocalEndpoint),
) -> LocalWorker {
    let (seen, mut rest) = mpsc::channel(16);
    tokio::spawn(async move { while rest.recv().await.is_some() {} });
    let folder = tempfile::tempdir().unwrap();
    let mut local_listener = LocalListener::open(folder.path(), memory).unwrap();
    change(&mut local_listener.endpoint);
    let service = Arc::new(FakeWorker { batch: batch.clone(), seen });
    let routes = worker_routes_with_local(service, &local_listener);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let remote = tokio::spawn(serve(listener, routes.clone(), std::future::pending()));
    let local = tokio::spawn(serve_local(local_listener, routes, std::future::pending()));
    LocalWorker { url, _folder: folder, tasks: vec![remote, local] }
}

static RECEIVED: Mutex<Vec<(ReceivePath, u64)>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1);

fn note(via: ReceivePath, bytes: u64) {
    RECEIVED.lock().unwrap().push((via, bytes));
}

/// Fetches the three pieces of the fake worker and returns the transports of their bytes.
pub(super) async fn fetch(
    url: &str,
    transport: Transport,
    batch: &Bytes,
) -> Result<Vec<ReceivePath>, ServiceError> {
    let _turn = ONE_AT_A_TIME.acquire().await.unwrap();
    RECEIVED.lock().unwrap().clear();
    let client = connect_worker_over(&WorkerAddress::new(url), &Credentials::default(), transport, note)?;
    let (credit, requests) = requests(open(1));
    for bytes in 0..3 {
        credit.send(FetchRequest::Credit { bytes }).await.unwrap();
    }
    let frames: Vec<Frame> = within(within(client.fetch(requests)).await?.try_collect()).await?;
    let bytes = frames.iter().filter_map(|frame| match frame {
        Frame::Chunk { data, .. } => Some(data),
        _ => None,
    });
    let all: Vec<u8> = bytes.flatten().copied().collect();
    assert!(all == [&batch[..], &batch[..], &batch[..]].concat(), "three times the batch");
    assert_eq!(frames.last(), Some(&Frame::End));
    assert!(!client.is_remote(), "a loopback address is never remote");
    let received = RECEIVED.lock().unwrap();
    assert_eq!(received.iter().map(|(_, bytes)| bytes).sum::<u64>(), 3 * batch.len() as u64);
    let mut paths: Vec<ReceivePath> = received.iter().map(|(via, _)| *via).collect();
    paths.dedup();
    Ok(paths)
}

fn batch() -> Bytes {
    (0..2_000_003_u32).map(|index| (index % 251) as u8).collect::<Vec<u8>>().into()
}

#[tokio::test]
async fn every_transport_delivers_the_same_bytes() {
    let batch = batch();
    let worker = start_local_worker(&batch, Some(64 << 20), |_| {}).await;
    for (transport, via) in [
        (Transport::Auto, ReceivePath::Memory),
        (Transport::Memory, ReceivePath::Memory),
        (Transport::Unix, ReceivePath::Unix),
        (Transport::Tcp, ReceivePath::Tcp),
    ] {
        assert_eq!(fetch(&worker.url, transport, &batch).await, Ok(vec![via]), "{transport:?}");
    }
    let worker = start_local_worker(&batch, None, |_| {}).await;
    assert_eq!(fetch(&worker.url, Transport::Auto, &batch).await, Ok(vec![ReceivePath::Unix]));
}

#[tokio::test]
async fn pieces_that_exceed_the_shared_memory_use_the_socket() {
    let batch = batch();
    // The memory holds one of the three pieces, which the test does not release.
    let worker = start_local_worker(&batch, Some(3 << 20), |_| {}).await;
    let paths = fetch(&worker.url, Transport::Memory, &batch).await;
    assert_eq!(paths, Ok(vec![ReceivePath::Memory, ReceivePath::Unix]));
}

#[tokio::test]
async fn a_client_on_another_host_or_in_another_container_uses_tcp() {
    let batch = batch();
    let other_host =
        start_local_worker(&batch, Some(64 << 20), |endpoint| endpoint.boot_id = "another".to_owned()).await;
    let other_container = start_local_worker(&batch, Some(64 << 20), |endpoint| {
        endpoint.socket = "/nowhere/worker.sock".into()
    })
    .await;
    for worker in [&other_host, &other_container] {
        let asked = Instant::now();
        assert_eq!(fetch(&worker.url, Transport::Auto, &batch).await, Ok(vec![ReceivePath::Tcp]));
        assert!(asked.elapsed() < Duration::from_secs(1));
        for transport in [Transport::Unix, Transport::Memory] {
            let error = fetch(&worker.url, transport, &batch).await.unwrap_err();
            assert_eq!(error.kind, ServiceErrorKind::Invalid);
            assert!(error.message.contains("through a local socket: "), "{error}");
        }
    }
    let no_memory = start_local_worker(&batch, None, |_| {}).await;
    let error = fetch(&no_memory.url, Transport::Memory, &batch).await.unwrap_err();
    assert!(error.message.contains("the server does not offer shared memory"), "{error}");
}

/// Whether a fetch over this channel receives a piece in the shared memory of a link.
async fn is_shared(channel: &Channel, link: &ShmClient, job: JobId) -> Result<bool, Status> {
    let (credit, requests) = requests(FetchOpen { job, ..open(1) });
    for bytes in 0..3 {
        credit.send(FetchRequest::Credit { bytes }).await.unwrap();
    }
    let receiver = link.open_fetch();
    let requests = requests.map(move |request| {
        let mut request: wire::FetchRequest = request.into_wire();
        if let Some(wire::fetch_request::Request::Open(open)) = &mut request.request {
            open.memory = Some(receiver.memory);
        }
        request
    });
    let mut frames = within(fetch_client::fetch(channel.clone(), PROTOCOL_VERSION, requests)).await?;
    let mut is_shared = false;
    while let Some(frame) = within(frames.next()).await {
        if let ReceivedMessage::Message(message) = frame? {
            is_shared |= matches!(message.frame, Some(wire::fetch_frame::Frame::Shared(_)));
        }
    }
    Ok(is_shared)
}

#[tokio::test]
async fn memory_is_shared_over_the_local_socket_only_and_never_after_a_rejected_fetch() {
    let batch = batch();
    let (mut socket, mut memory_socket) = (None, None);
    let copy_paths = |endpoint: &mut LocalEndpoint| {
        (socket, memory_socket) = (Some(endpoint.socket.clone()), endpoint.memory_socket.clone());
    };
    let worker = start_local_worker(&batch, Some(64 << 20), copy_paths).await;
    let link = ShmClient::connect(&memory_socket.unwrap()).await.unwrap();
    let local = channel::connect_local(&socket.unwrap()).await.unwrap();
    let peer = RemoteName::new("worker", &worker.url, &Credentials::default());
    let remote = channel::connect_lazily(&peer, &Credentials::default()).unwrap();
    let refused = JobId(fake::FIRST_FAILING);
    assert!(is_shared(&local, &link, JobId(1)).await.unwrap());
    // A TCP client may be another process that knows the id of the link.
    assert!(!is_shared(&remote, &link, JobId(1)).await.unwrap());
    for channel in [&local, &remote] {
        assert!(is_shared(channel, &link, refused).await.is_err());
    }
}

#[test]
fn loopback_addresses_are_recognized() {
    let is_loopback = |url| RemoteName::new("worker", url, &Credentials::default()).is_loopback();
    for url in ["http://127.0.0.1:7071", "https://localhost:7071", "http://[::1]:7071"] {
        assert!(is_loopback(url), "{url}");
    }
    for url in ["http://10.0.0.7:7071", "https://worker1.example.org", "http://[fd00::1]:7071"] {
        assert!(!is_loopback(url), "{url}");
    }
}
