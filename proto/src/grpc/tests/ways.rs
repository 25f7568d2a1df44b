//! Fetches by every way between two ends on one host, and back to TCP where there is no other.

use std::sync::Mutex;

use tonic::Status;
use tonic::transport::Channel;

use super::*;
use crate::grpc::channel::RemoteName;
use crate::grpc::framing::ReceivedMessage;
use crate::grpc::{channel, fetch_client};
use crate::local::{LocalEndpoint, ShmClient};
use crate::wire;

/// A worker that listens by TCP and has an entrance.
pub(super) struct Near {
    pub(super) url: String,
    _folder: tempfile::TempDir,
    tasks: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Drop for Near {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves `batch`; `change` changes what clients are told of the entrance.
pub(super) async fn near(
    batch: &Bytes,
    memory: Option<u64>,
    change: impl FnOnce(&mut LocalEndpoint),
) -> Near {
    let (seen, mut rest) = mpsc::channel(16);
    tokio::spawn(async move { while rest.recv().await.is_some() {} });
    let folder = tempfile::tempdir().unwrap();
    let mut entrance = LocalListener::open(folder.path(), memory).unwrap();
    change(&mut entrance.place);
    let routes = worker_routes_with(Arc::new(FakeWorker { batch: batch.clone(), seen }), &entrance);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let remote = tokio::spawn(serve(listener, routes.clone(), std::future::pending()));
    let local = tokio::spawn(serve_entrance(entrance, routes, std::future::pending()));
    Near { url, _folder: folder, tasks: vec![remote, local] }
}

static RECEIVED: Mutex<Vec<(ReceivePath, u64)>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1);

fn note(via: ReceivePath, bytes: u64) {
    RECEIVED.lock().unwrap().push((via, bytes));
}

/// Fetches the fake worker's three pieces; says by which ways their bytes came.
pub(super) async fn fetch(
    url: &str,
    transport: Transport,
    batch: &Bytes,
) -> Result<Vec<ReceivePath>, ServiceError> {
    let _turn = ONE_AT_A_TIME.acquire().await.unwrap();
    RECEIVED.lock().unwrap().clear();
    let client = connect_worker_by(url, &Credentials::default(), transport, note)?;
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
    assert!(!client.is_remote(), "it is at a loopback address, by whichever way");
    let received = RECEIVED.lock().unwrap();
    assert_eq!(received.iter().map(|(_, bytes)| bytes).sum::<u64>(), 3 * batch.len() as u64);
    let mut ways: Vec<ReceivePath> = received.iter().map(|(via, _)| *via).collect();
    ways.dedup();
    Ok(ways)
}

fn batch() -> Bytes {
    (0..2_000_003_u32).map(|place| (place % 251) as u8).collect::<Vec<u8>>().into()
}

#[tokio::test]
async fn every_way_brings_the_same_bytes() {
    let batch = batch();
    let worker = near(&batch, Some(64 << 20), |_| {}).await;
    for (transport, via) in [
        (Transport::Auto, ReceivePath::Memory),
        (Transport::Memory, ReceivePath::Memory),
        (Transport::Unix, ReceivePath::Unix),
        (Transport::Tcp, ReceivePath::Tcp),
    ] {
        assert_eq!(fetch(&worker.url, transport, &batch).await, Ok(vec![via]), "{transport:?}");
    }
    let worker = near(&batch, None, |_| {}).await;
    assert_eq!(fetch(&worker.url, Transport::Auto, &batch).await, Ok(vec![ReceivePath::Unix]));
}

#[tokio::test]
async fn where_there_is_no_room_the_socket_is_used() {
    let batch = batch();
    // For one of the three pieces, which the test keeps.
    let worker = near(&batch, Some(3 << 20), |_| {}).await;
    let ways = fetch(&worker.url, Transport::Memory, &batch).await;
    assert_eq!(ways, Ok(vec![ReceivePath::Memory, ReceivePath::Unix]));
}

#[tokio::test]
async fn a_client_elsewhere_uses_tcp() {
    let batch = batch();
    let other_host = near(&batch, Some(64 << 20), |place| place.host = "another".to_owned()).await;
    let other_container =
        near(&batch, Some(64 << 20), |place| place.socket = "/nowhere/worker.sock".into()).await;
    for worker in [&other_host, &other_container] {
        let asked = Instant::now();
        assert_eq!(fetch(&worker.url, Transport::Auto, &batch).await, Ok(vec![ReceivePath::Tcp]));
        assert!(asked.elapsed() < Duration::from_secs(1));
        for transport in [Transport::Unix, Transport::Memory] {
            let refusal = fetch(&worker.url, transport, &batch).await.unwrap_err();
            assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
            assert!(refusal.message.contains("cannot be reached by a local socket: "), "{refusal}");
        }
    }
    let no_memory = near(&batch, None, |_| {}).await;
    let refusal = fetch(&no_memory.url, Transport::Memory, &batch).await.unwrap_err();
    assert!(refusal.message.contains("it shares no memory"), "{refusal}");
}

/// Whether a fetch of a job by this channel is lent memory of a link.
async fn is_lent(channel: &Channel, link: &ShmClient, job: JobId) -> Result<bool, Status> {
    let (credit, requests) = requests(FetchOpen { job, ..open(1) });
    for bytes in 0..3 {
        credit.send(FetchRequest::Credit { bytes }).await.unwrap();
    }
    let borrowed = link.begin();
    let requests = requests.map(move |request| {
        let mut request = wire::FetchRequest::from(request);
        if let Some(wire::fetch_request::Request::Open(open)) = &mut request.request {
            open.memory = Some(borrowed.memory);
        }
        request
    });
    let mut frames = within(fetch_client::fetch(channel.clone(), PROTOCOL_VERSION, requests)).await?;
    let mut is_lent = false;
    while let Some(frame) = within(frames.next()).await {
        if let ReceivedMessage::Message(message) = frame? {
            is_lent |= matches!(message.frame, Some(wire::fetch_frame::Frame::Lent(_)));
        }
    }
    Ok(is_lent)
}

#[tokio::test]
async fn memory_is_lent_over_its_own_processs_socket_and_to_nobody_who_is_refused() {
    let batch = batch();
    let (mut socket, mut memory_socket) = (None, None);
    let note_place = |place: &mut LocalEndpoint| {
        (socket, memory_socket) = (Some(place.socket.clone()), place.memory_socket.clone());
    };
    let worker = near(&batch, Some(64 << 20), note_place).await;
    let link = ShmClient::connect(&memory_socket.unwrap()).await.unwrap();
    let local = channel::connect_local(&socket.unwrap()).await.unwrap();
    let peer = RemoteName::new("worker", &worker.url, &Credentials::default());
    let remote = channel::connect_lazily(&peer, &Credentials::default()).unwrap();
    let refused = JobId(fake::FIRST_REFUSED);
    assert!(is_lent(&local, &link, JobId(1)).await.unwrap());
    // Whoever comes by TCP may be anybody who has heard the link's name.
    assert!(!is_lent(&remote, &link, JobId(1)).await.unwrap());
    for channel in [&local, &remote] {
        assert!(is_lent(channel, &link, refused).await.is_err());
    }
}

#[test]
fn only_addresses_of_other_hosts_lead_over_a_network() {
    let is_loopback = |url| RemoteName::new("worker", url, &Credentials::default()).is_loopback();
    for near in ["http://127.0.0.1:7071", "https://localhost:7071", "http://[::1]:7071"] {
        assert!(is_loopback(near), "{near}");
    }
    for far in ["http://10.0.0.7:7071", "https://worker1.example.org", "http://[fd00::1]:7071"] {
        assert!(!is_loopback(far), "{far}");
    }
}
