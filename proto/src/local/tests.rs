//! Tests of regions: they are leased, released and reused, and freed when the client disconnects.

use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::wire;

/// Timeout that is longer than every test, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);
const PIECE: usize = 256 << 10;

struct RunningServer {
    server: Arc<ShmServer>,
    folder: TempDir,
    _task: AbortOnDropHandle<std::convert::Infallible>,
}

impl RunningServer {
    fn start(limit_bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = ShmServer::new(limit_bytes as u64);
        let listener = UnixListener::bind(folder.path().join(MEMORY_SOCKET)).unwrap();
        let task = tokio::spawn(Arc::clone(&server).serve(listener));
        Self { server, folder, _task: AbortOnDropHandle::new(task) }
    }

    async fn connect(&self) -> ShmClient {
        ShmClient::connect(&self.folder.path().join(MEMORY_SOCKET)).await.unwrap()
    }

    fn open_fetch(&self, receiver: &ShmFetchReceiver) -> ShmFetchSender {
        let wire::MemoryLink { link, fetch, key } = receiver.memory;
        self.server.open_fetch(LinkId { link, key }, this_process(), fetch).unwrap()
    }

    fn shared_bytes(&self) -> usize {
        self.server.shared_bytes().current() as usize
    }
}

fn this_process() -> PeerProcess {
    PeerProcess(std::process::id().try_into().unwrap())
}

fn piece(fill: u8) -> Bytes {
    vec![fill; PIECE].into()
}

/// Repeats a check until it succeeds; a hang fails the test.
async fn eventually<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let checked = async {
        loop {
            if let Some(answer) = check() {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, checked).await.expect("it must not hang")
}

#[tokio::test]
async fn a_released_piece_frees_memory_for_the_next_piece() {
    let server = RunningServer::start(2 * PIECE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    let first = receiver.map_piece(sender.share(&piece(1)).unwrap()).await.unwrap();
    let second = receiver.map_piece(sender.share(&piece(2)).unwrap()).await.unwrap();
    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
    assert_eq!(sender.share(&piece(3)), None, "the limit");
    assert_eq!(first.as_ptr() as usize % crate::batch::ALIGNMENT_BYTES, 0);
    let part = first.slice(5..9);
    drop(first);
    assert_eq!(sender.share(&piece(3)), None, "a part of the piece is still read");
    drop(part);
    let third = eventually(|| sender.share(&piece(3))).await;
    let third = receiver.map_piece(third).await.unwrap();
    assert!(third.iter().all(|byte| *byte == 3) && second.iter().all(|byte| *byte == 2));
    assert_eq!(server.shared_bytes(), 2 * PIECE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_piece_has_a_region_if_it_is_within_the_limit() {
    const LARGE: usize = 20 << 20;
    let server = RunningServer::start(LARGE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    let large = Bytes::from(vec![7; LARGE]);
    let mapped = receiver.map_piece(sender.share(&large).unwrap()).await.unwrap();
    assert_eq!(mapped, large);
    drop(mapped);
    assert_eq!(sender.share(&Bytes::from(vec![7; LARGE + PIECE])), None, "it is sent through the socket");
}

#[tokio::test]
async fn a_disconnected_client_frees_all_regions() {
    let server = RunningServer::start(8 * PIECE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    let kept = receiver.map_piece(sender.share(&piece(7)).unwrap()).await.unwrap();
    sender.share(&piece(8)).unwrap();
    assert_eq!(server.shared_bytes(), 2 * PIECE);
    drop(link);
    eventually(|| (server.shared_bytes() == 0).then_some(())).await;
    assert_eq!(sender.share(&piece(9)), None, "the link has ended");
    assert!(kept.iter().all(|byte| *byte == 7), "mapped pieces stay readable");
}

#[tokio::test]
async fn pieces_that_never_arrived_are_released_with_their_fetch() {
    let server = RunningServer::start(2 * PIECE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    let kept = receiver.map_piece(sender.share(&piece(1)).unwrap()).await.unwrap();
    sender.share(&piece(2)).unwrap();
    drop(receiver);
    eventually(|| sender.share(&piece(3)).is_none().then_some(())).await;
    drop(sender);
    let mut next = link.open_fetch();
    let sender = server.open_fetch(&next);
    let second = eventually(|| sender.share(&piece(4))).await;
    let second = next.map_piece(second).await.unwrap();
    assert!(kept.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 4));
    assert_eq!(sender.share(&piece(5)), None, "the first piece is still read");
}

#[tokio::test]
async fn idle_regions_of_another_size_are_freed() {
    let server = RunningServer::start(4 * PIECE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    for fill in 0..4 {
        drop(receiver.map_piece(sender.share(&piece(fill)).unwrap()).await.unwrap());
    }
    let large: Bytes = vec![9; 4 * PIECE].into();
    let piece = eventually(|| sender.share(&large)).await;
    assert_eq!(receiver.map_piece(piece).await.unwrap(), large);
    assert_eq!(sender.share(&Bytes::from_static(b"small")), None, "small pieces travel through the socket");
}

#[tokio::test]
async fn mapped_pieces_outlive_the_server() {
    let server = RunningServer::start(2 * PIECE);
    let link = server.connect().await;
    let mut receiver = link.open_fetch();
    let sender = server.open_fetch(&receiver);
    let kept = receiver.map_piece(sender.share(&piece(1)).unwrap()).await.unwrap();
    let lost = sender.share(&piece(2)).unwrap();
    drop((sender, server));
    eventually(|| link.is_closed().then_some(())).await;
    assert!(receiver.map_piece(lost).await.is_err());
    assert!(kept.iter().all(|byte| *byte == 1));
}

#[tokio::test]
async fn a_link_is_valid_only_for_its_process_and_id() {
    let server = RunningServer::start(2 * PIECE);
    let (victim, other) = (server.connect().await, server.connect().await);
    let [wire::MemoryLink { link, fetch, key }, others] =
        [&victim, &other].map(|link| link.open_fetch().memory);
    assert_ne!((link, key), (others.link, others.key));
    let id = LinkId { link, key };
    let guessed =
        [LinkId { key: key ^ 1, ..id }, LinkId { link: link ^ 1, ..id }, LinkId { link: 1, key: 0 }];
    for guess in guessed {
        assert!(server.server.open_fetch(guess, this_process(), fetch).is_none(), "guessed");
    }
    assert!(
        server.server.open_fetch(id, PeerProcess(this_process().0 + 1), fetch).is_none(),
        "another process"
    );
    assert!(server.server.open_fetch(id, this_process(), fetch).is_some());
    assert!(!format!("{id:?}").contains(&link.to_string()), "logs do not contain the id");
}

#[tokio::test]
async fn a_missing_socket_is_reported_immediately() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ShmClient::connect(&folder.path().join("none")).await.is_err());
    let listener = LocalListener::open(folder.path(), None).unwrap();
    assert!(listener.memory.is_none() && !listener.endpoint.boot_id.is_empty());
    assert_eq!(listener.shared_bytes().current(), 0);
}
