//! Memory is lent, let go of, used again, and all of it comes back when a client has gone.

use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::wire;

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const PIECE: usize = 256 << 10;

struct Lending {
    lender: Arc<ShmServer>,
    folder: TempDir,
    _task: AbortOnDropHandle<()>,
}

impl Lending {
    fn start(limit_bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lender = ShmServer::new(limit_bytes as u64);
        let listener = UnixListener::bind(folder.path().join(MEMORY_SOCKET)).unwrap();
        let task = tokio::spawn(Arc::clone(&lender).serve(listener));
        Self { lender, folder, _task: AbortOnDropHandle::new(task) }
    }

    async fn link(&self) -> ShmClient {
        ShmClient::connect(&self.folder.path().join(MEMORY_SOCKET)).await.unwrap()
    }

    fn fetch(&self, borrowed: &ShmFetchReceiver) -> ShmFetchSender {
        let wire::MemoryLink { link, fetch, key } = borrowed.memory;
        self.lender.fetch(LinkId { link, key }, this_process(), fetch).unwrap()
    }

    fn lent(&self) -> usize {
        self.lender.lent_bytes().now() as usize
    }
}

fn this_process() -> PeerProcess {
    PeerProcess(std::process::id().try_into().unwrap())
}

fn piece(fill: u8) -> Bytes {
    vec![fill; PIECE].into()
}

/// Asks again until the other end has heard; a hang fails the test.
async fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it must not hang")
}

#[tokio::test]
async fn a_piece_that_is_let_go_of_makes_room_for_the_next() {
    let lending = Lending::start(2 * PIECE);
    let link = lending.link().await;
    let mut borrowed = link.begin();
    let fetch = lending.fetch(&borrowed);
    let first = borrowed.take(fetch.lend(&piece(1)).unwrap()).await.unwrap();
    let second = borrowed.take(fetch.lend(&piece(2)).unwrap()).await.unwrap();
    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
    assert_eq!(fetch.lend(&piece(3)), None, "the limit");
    assert_eq!(first.as_ptr() as usize % crate::batch::ALIGNMENT_BYTES, 0);
    let part = first.slice(5..9);
    drop(first);
    assert_eq!(fetch.lend(&piece(3)), None, "a part of the piece is still read");
    drop(part);
    let third = eventually(|| fetch.lend(&piece(3))).await;
    let third = borrowed.take(third).await.unwrap();
    assert!(third.iter().all(|byte| *byte == 3) && second.iter().all(|byte| *byte == 2));
    assert_eq!(lending.lent(), 2 * PIECE);
}

#[tokio::test]
async fn a_client_that_has_gone_gives_everything_back() {
    let lending = Lending::start(8 * PIECE);
    let link = lending.link().await;
    let mut borrowed = link.begin();
    let fetch = lending.fetch(&borrowed);
    let kept = borrowed.take(fetch.lend(&piece(7)).unwrap()).await.unwrap();
    fetch.lend(&piece(8)).unwrap();
    assert_eq!(lending.lent(), 2 * PIECE);
    drop(link);
    eventually(|| (lending.lent() == 0).then_some(())).await;
    assert_eq!(fetch.lend(&piece(9)), None, "the link is gone");
    assert!(kept.iter().all(|byte| *byte == 7), "what was borrowed stays readable");
}

#[tokio::test]
async fn what_never_arrived_goes_back_with_its_fetch() {
    let lending = Lending::start(2 * PIECE);
    let link = lending.link().await;
    let mut borrowed = link.begin();
    let fetch = lending.fetch(&borrowed);
    let kept = borrowed.take(fetch.lend(&piece(1)).unwrap()).await.unwrap();
    fetch.lend(&piece(2)).unwrap();
    drop(borrowed);
    eventually(|| fetch.lend(&piece(3)).is_none().then_some(())).await;
    drop(fetch);
    let mut next = link.begin();
    let fetch = lending.fetch(&next);
    let second = eventually(|| fetch.lend(&piece(4))).await;
    let second = next.take(second).await.unwrap();
    assert!(kept.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 4));
    assert_eq!(fetch.lend(&piece(5)), None, "the first piece is still read");
}

#[tokio::test]
async fn regions_of_another_size_make_room() {
    let lending = Lending::start(4 * PIECE);
    let link = lending.link().await;
    let mut borrowed = link.begin();
    let fetch = lending.fetch(&borrowed);
    for fill in 0..4 {
        drop(borrowed.take(fetch.lend(&piece(fill)).unwrap()).await.unwrap());
    }
    let large: Bytes = vec![9; 4 * PIECE].into();
    let lent = eventually(|| fetch.lend(&large)).await;
    assert_eq!(borrowed.take(lent).await.unwrap(), large);
    assert_eq!(fetch.lend(&Bytes::from_static(b"small")), None, "small pieces go through the socket");
}

#[tokio::test]
async fn a_lender_that_has_gone_leaves_what_was_lent() {
    let lending = Lending::start(2 * PIECE);
    let link = lending.link().await;
    let mut borrowed = link.begin();
    let fetch = lending.fetch(&borrowed);
    let kept = borrowed.take(fetch.lend(&piece(1)).unwrap()).await.unwrap();
    let lost = fetch.lend(&piece(2)).unwrap();
    drop((fetch, lending));
    eventually(|| link.is_closed().then_some(())).await;
    assert!(borrowed.take(lost).await.is_err());
    assert!(kept.iter().all(|byte| *byte == 1));
}

#[tokio::test]
async fn a_link_is_for_whoever_was_told_of_it() {
    let lending = Lending::start(2 * PIECE);
    let (victim, other) = (lending.link().await, lending.link().await);
    let [wire::MemoryLink { link, fetch, key }, others] = [&victim, &other].map(|link| link.begin().memory);
    assert_ne!((link, key), (others.link, others.key));
    let id = LinkId { link, key };
    let guessed =
        [LinkId { key: key ^ 1, ..id }, LinkId { link: link ^ 1, ..id }, LinkId { link: 1, key: 0 }];
    for guess in guessed {
        assert!(lending.lender.fetch(guess, this_process(), fetch).is_none(), "guessed");
    }
    assert!(lending.lender.fetch(id, PeerProcess(this_process().0 + 1), fetch).is_none(), "another process");
    assert!(lending.lender.fetch(id, this_process(), fetch).is_some());
    assert!(!format!("{id:?}").contains(&link.to_string()), "logs do not tell it");
}

#[tokio::test]
async fn nobody_at_the_path_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ShmClient::connect(&folder.path().join("none")).await.is_err());
    let entrance = LocalListener::open(folder.path(), None).unwrap();
    assert!(entrance.memory.is_none() && !entrance.place.host.is_empty());
    assert_eq!(entrance.lent_bytes().now(), 0);
}
