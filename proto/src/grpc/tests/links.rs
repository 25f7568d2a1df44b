//! Tests that a slow link transfers compressed chunks, and a fast link transfers uncompressed chunks.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio_util::task::AbortOnDropHandle;

use super::transports::{fetch, start_local_worker};
use super::*;

/// Size in bytes of each of the three pieces of the fake worker.
const PIECE: usize = 16 << 20;
/// Bytes per second of the slow link, much slower than LZ4 in a debug build.
const RATE: u64 = 24_000_000;

/// A slow link to a worker. The worker sees a client on another host.
struct SlowLink {
    url: String,
    /// Bytes that the client has received.
    passed: Arc<AtomicU64>,
    _task: AbortOnDropHandle<std::io::Result<()>>,
}

async fn slow_link(worker: &str) -> SlowLink {
    let worker = worker.strip_prefix("http://").unwrap().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let passed = Arc::new(AtomicU64::new(0));
    let task = AbortOnDropHandle::new(tokio::spawn(carry(listener, worker, Arc::clone(&passed))));
    SlowLink { url, passed, _task: task }
}

async fn carry(
    listener: TcpListener,
    worker: std::net::SocketAddr,
    passed: Arc<AtomicU64>,
) -> std::io::Result<()> {
    let (client, _) = listener.accept().await?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(64 << 10)?;
    socket.bind("127.0.0.2:0".parse().unwrap())?;
    let (mut from_worker, mut to_worker) = socket.connect(worker).await?.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let down = async {
        let mut buffer = vec![0; 16 << 10];
        let begun = tokio::time::Instant::now();
        loop {
            let bytes = from_worker.read(&mut buffer).await?;
            if bytes == 0 {
                return Ok(());
            }
            to_client.write_all(&buffer[..bytes]).await?;
            let total = passed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            tokio::time::sleep_until(begun + Duration::from_nanos(total * 1_000_000_000 / RATE)).await;
        }
    };
    let up = async { tokio::io::copy(&mut from_client, &mut to_worker).await.map(|_| ()) };
    tokio::try_join!(down, up).map(|_| ())
}

/// Fetches three pieces through a slow link, checks them, and returns the number of bytes that the link transferred.
async fn through_slow_link(batch: &Bytes) -> u64 {
    let worker = start_local_worker(batch, None, |_| {}).await;
    let link = slow_link(&worker.url).await;
    let client = connect_worker_over(
        &WorkerAddress::new(&*link.url),
        &Credentials::default(),
        Transport::Tcp,
        |_, _| {},
    )
    .unwrap();
    let (credit, requests) = requests(open(1));
    for bytes in 0..3 {
        credit.send(FetchRequest::Credit { bytes }).await.unwrap();
    }
    let frames: Vec<Frame> =
        within(within(client.fetch(requests)).await.unwrap().try_collect()).await.unwrap();
    let mut position = 0;
    for frame in &frames {
        let Frame::Chunk { offset, data } = frame else { continue };
        assert_eq!(*offset as usize, position % PIECE);
        assert!(
            data[..] == batch[position % PIECE..position % PIECE + data.len()],
            "the bytes at {position}"
        );
        position += data.len();
    }
    assert_eq!((position, frames.last()), (3 * PIECE, Some(&Frame::End)));
    link.passed.load(Ordering::Relaxed)
}

fn compressible() -> Bytes {
    (0..PIECE).map(|index| (index / 7 % 251) as u8).collect::<Vec<u8>>().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_slower_than_the_codec_transfers_compressed_chunks() {
    let carried = through_slow_link(&compressible()).await;
    // The load of the machine determines when compression begins. Compressed pieces are tiny.
    assert!(carried < 3 * PIECE as u64 * 9 / 10, "{carried} of {} bytes", 3 * PIECE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incompressible_bytes_are_not_packed() {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    });
    let carried = through_slow_link(&noise.take(PIECE).collect::<Vec<u8>>().into()).await;
    assert!((3 * PIECE as u64..3 * PIECE as u64 + (64 << 10)).contains(&carried), "{carried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_between_processes_of_one_host_are_not_packed() {
    let batch = compressible();
    let worker = start_local_worker(&batch, None, |_| {}).await;
    // The helper fails if the number of received bytes differs from the size of the pieces.
    assert_eq!(fetch(&worker.url, Transport::Tcp, &batch).await, Ok(vec![ReceivePath::Tcp]));
}
