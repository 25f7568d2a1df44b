//! Tests of delivery reports: raft needs the outcome of each snapshot, even if its link is closed. Also tests saved indexes.

use async_trait::async_trait;
use feedline_data::schema::Schema;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;

/// A coordinator that accepts or rejects messages, or never replies, depending on its address.
struct Fake {
    url: String,
    asked: mpsc::Sender<String>,
}

#[async_trait]
impl PeerService for Fake {
    async fn introduce(&self, _from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        Err(refusal())
    }

    async fn join(&self, _from: MemberInfo) -> Result<(), ServiceError> {
        Err(refusal())
    }

    async fn deliver(&self, _sender: MemberInfo, _messages: Vec<Bytes>) -> Result<(), ServiceError> {
        self.asked.send(self.url.clone()).await.expect("the test listens");
        match self.url.as_str() {
            "hangs" => std::future::pending().await,
            "refuses" => Err(refusal()),
            _ => Ok(()),
        }
    }

    async fn store_index(&self, _: &str, _: Arc<Manifest>, _: &[String]) -> Result<(), ServiceError> {
        self.asked.send(self.url.clone()).await.expect("the test listens");
        match self.url.as_str() {
            "hangs" => std::future::pending().await,
            "refuses" => Err(refusal()),
            _ => Ok(()),
        }
    }

    async fn load_index(&self, _key: &str, _reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        Err(refusal())
    }
}

fn refusal() -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, "it does not")
}

/// Resolves all addresses except one.
struct Directory(mpsc::Sender<String>);

impl PeerDirectory for Directory {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        if url == "nowhere" {
            return Err(refusal());
        }
        Ok(Arc::new(Fake { url: url.to_owned(), asked: self.0.clone() }))
    }
}

fn id(number: u64) -> MemberId {
    MemberId::new(number).unwrap()
}

/// The other coordinator.
fn other() -> MemberId {
    id(2)
}

/// The addresses of two members. The other member has this address.
fn both(url: &str) -> BTreeMap<MemberId, PeerAddress> {
    started_at(url, 0)
}

/// The addresses of two members. The other member has stated its address at this start.
fn started_at(url: &str, incarnation: u64) -> BTreeMap<MemberId, PeerAddress> {
    let other_address = PeerAddress { url: url.to_owned(), incarnation, is_member: true };
    [(other(), other_address)].into_iter().chain(alone()).collect()
}

/// The address of this coordinator.
fn alone() -> BTreeMap<MemberId, PeerAddress> {
    [(id(1), PeerAddress { url: String::new(), incarnation: 0, is_member: true })].into()
}

fn snapshot() -> Message {
    // The number of the message type.
    let mut message = feedline_raft::decode(&[0x08, 7]).unwrap();
    assert!(feedline_raft::has_snapshot(&message));
    message.to = other().get();
    message
}

struct Bench {
    peers: Peers,
    heard: mpsc::Receiver<SendOutcome>,
    asked: mpsc::Receiver<String>,
}

impl Bench {
    /// Moves the other coordinator to this address.
    fn at(url: &str) -> Self {
        let (sender, asked) = mpsc::channel(8);
        let own = Arc::new(OwnIdentity::new(id(1), String::new(), 1, true));
        let (peers, heard) = Peers::new(own, Arc::new(Directory(sender)));
        assert_eq!(peers.update_links(&both(url)), []);
        Self { peers, heard, asked }
    }

    /// Sends a snapshot and waits until the other coordinator receives it.
    async fn send(&mut self, url: &str) {
        assert_eq!(self.peers.send(vec![snapshot()]), []);
        let asked = tokio::time::timeout(Duration::from_secs(1), self.asked.recv()).await;
        assert_eq!(asked.expect("it is asked").as_deref(), Some(url));
    }

    /// Saves an index on the other coordinator, which moves or is removed once it has received the index.
    async fn save_while(&mut self, change: &BTreeMap<MemberId, PeerAddress>) -> Result<(), String> {
        let manifest = Arc::new(Manifest { schema: Schema::default(), shards: Vec::new() });
        let saving = self.peers.store_index(1, "key", &manifest, &[]);
        let changing = async {
            self.asked.recv().await.expect("it is asked");
            self.peers.update_links(change);
        };
        let (saved, ()) = futures::join!(saving, changing);
        saved
    }

    async fn hears(&mut self, wanted: &[SendOutcome]) {
        for wanted in wanted {
            let heard = tokio::time::timeout(Duration::from_secs(1), self.heard.recv()).await;
            assert_eq!(heard.expect("the outcome"), Some(*wanted));
        }
        assert_eq!(self.heard.try_recv(), Err(TryRecvError::Empty));
    }
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_snapshot_is_reported() {
    let mut bench = Bench::at("takes");
    bench.send("takes").await;
    bench.hears(&[SendOutcome::Snapshot(other(), true)]).await;
    let mut bench = Bench::at("refuses");
    bench.send("refuses").await;
    bench.hears(&[SendOutcome::Snapshot(other(), false), SendOutcome::Failed(other())]).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_to_an_old_address_is_lost_and_the_next_one_arrives() {
    let mut bench = Bench::at("hangs");
    bench.send("hangs").await;
    assert_eq!(bench.peers.update_links(&both("hangs")), [], "nothing has changed");
    assert_eq!(bench.peers.update_links(&both("takes")), [SendOutcome::Snapshot(other(), false)]);
    bench.hears(&[]).await;
    bench.send("takes").await;
    bench.hears(&[SendOutcome::Snapshot(other(), true)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_is_opened_again_after_a_restart_at_the_same_address() {
    let mut bench = Bench::at("hangs");
    bench.send("hangs").await;
    assert_eq!(bench.peers.update_links(&started_at("hangs", 5)), [], "it states its known address");
    bench.hears(&[]).await;
    let lost = [SendOutcome::Snapshot(other(), false)];
    assert_eq!(bench.peers.update_links(&started_at("hangs", 6)), lost, "it may be on another host");
    bench.send("hangs").await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_to_a_removed_member_is_lost() {
    let mut bench = Bench::at("hangs");
    bench.send("hangs").await;
    assert_eq!(bench.peers.update_links(&alone()), [SendOutcome::Snapshot(other(), false)]);
    assert_eq!(bench.peers.update_links(&alone()), [], "it is reported once");
    bench.hears(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_queued_is_reported_as_lost() {
    let lost = [SendOutcome::Failed(other()), SendOutcome::Snapshot(other(), false)];
    let bench = Bench::at("nowhere");
    assert_eq!(bench.peers.send(vec![snapshot()]), lost, "no link");
    let bench = Bench::at("hangs");
    let plain = Message { to: other().get(), ..Message::default() };
    let mut messages = vec![plain; MAX_QUEUED_MESSAGES];
    messages.push(snapshot());
    assert_eq!(bench.peers.send(messages), lost, "its queue is full");
}

#[tokio::test(start_paused = true)]
async fn an_index_is_saved_by_a_coordinator_that_moves() {
    for url in ["hangs", "refuses"] {
        let mut bench = Bench::at(url);
        assert_eq!(bench.save_while(&both("takes")).await, Ok(()));
        let asked: Vec<String> = std::iter::from_fn(|| bench.asked.try_recv().ok()).collect();
        assert!(asked.contains(&"takes".to_owned()), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_is_not_saved_by_a_coordinator_that_is_removed() {
    for url in ["hangs", "refuses"] {
        assert_eq!(Bench::at(url).save_while(&alone()).await, Ok(()), "no other member remains");
    }
}

/// The copy of a removed member does not protect the index.
#[tokio::test(start_paused = true)]
async fn an_index_is_saved_by_the_successor_of_a_removed_coordinator() {
    let mut bench = Bench::at("takes");
    let address = |url: &str| PeerAddress { url: url.to_owned(), incarnation: 0, is_member: true };
    let mut three = both("takes");
    three.insert(id(3), address("refuses"));
    bench.peers.update_links(&three);
    let manifest = Arc::new(Manifest { schema: Schema::default(), shards: Vec::new() });
    let saving = bench.peers.store_index(2, "key", &manifest, &[]);
    let replacing = async {
        let mut asked = BTreeSet::new();
        while asked.len() < 2 {
            asked.extend(bench.asked.recv().await);
        }
        // The first of them has the index, and the second cannot save it.
        let successors = [(id(4), address("also takes")), (id(5), address("takes too"))];
        bench.peers.update_links(&successors.into_iter().chain(alone()).collect());
    };
    let (saved, ()) = futures::join!(saving, replacing);
    assert_eq!(saved, Ok(()));
    let asked: BTreeSet<String> = std::iter::from_fn(|| bench.asked.try_recv().ok()).collect();
    assert!(asked.contains("also takes") && asked.contains("takes too"), "{asked:?}");
}
