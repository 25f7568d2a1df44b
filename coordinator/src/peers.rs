//! The connections to the other coordinators. Each connection has a queue of raft messages, and transfers saved dataset
//! indexes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_access::Credentials;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PROTOCOL_VERSION, PeerService, grpc};
use feedline_raft::{MemberId, Message, removed_member};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::address_book::PeerAddress;
use crate::identity::OwnIdentity;

/// Maximum number of queued messages for one coordinator. Further messages are dropped, and raft resends them.
const MAX_QUEUED_MESSAGES: usize = 4096;
/// Maximum number of queued delivery reports for the driver. Further senders wait.
const MAX_QUEUED_DELIVERIES: usize = 64;
/// Maximum number of messages in one request.
const MAX_BATCH_MESSAGES: usize = 256;
/// Pause between two attempts to save an index.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Connects to other coordinators.
pub trait PeerDirectory: Send + Sync {
    /// Returns a client for the coordinator at `url`.
    ///
    /// # Errors
    /// Returns an error if the address is invalid.
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError>;
}

/// Connects to coordinators over gRPC.
#[derive(Debug, Clone)]
pub struct GrpcPeers {
    /// The credentials of this coordinator.
    pub credentials: Credentials,
    /// The protocol version of this coordinator.
    pub protocol_version: u32,
}

impl Default for GrpcPeers {
    fn default() -> Self {
        Self { credentials: Credentials::default(), protocol_version: PROTOCOL_VERSION }
    }
}

impl PeerDirectory for GrpcPeers {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        grpc::connect_peer_with_version(url, &self.credentials, self.protocol_version)
    }
}

/// The outcome of sending messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// A coordinator was unreachable.
    Failed(MemberId),
    /// Whether a snapshot was delivered.
    Snapshot(MemberId, bool),
}

/// The connection to one coordinator.
struct Link {
    address: PeerAddress,
    peer: Arc<dyn PeerService>,
    queue: mpsc::Sender<Message>,
    task: JoinHandle<()>,
}

impl Link {
    /// Returns whether the link leads to this address. A coordinator that has restarted may have moved to another host with
    /// the same name, so its link is opened again.
    fn leads_to(&self, address: &PeerAddress) -> bool {
        let known = self.address.incarnation;
        self.address.url == address.url && (known == 0 || known == address.incarnation)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The other coordinators.
pub(crate) struct Peers {
    own: Arc<OwnIdentity>,
    directory: Arc<dyn PeerDirectory>,
    deliveries: mpsc::Sender<SendOutcome>,
    links: Mutex<BTreeMap<MemberId, Link>>,
    /// The ids of removed members.
    removed: Mutex<BTreeSet<MemberId>>,
}

impl Peers {
    pub(crate) fn new(
        own: Arc<OwnIdentity>,
        directory: Arc<dyn PeerDirectory>,
    ) -> (Self, mpsc::Receiver<SendOutcome>) {
        let (deliveries, outcomes) = mpsc::channel(MAX_QUEUED_DELIVERIES);
        let (links, removed) = (Mutex::default(), Mutex::default());
        (Self { own, directory, deliveries, links, removed }, outcomes)
    }

    /// Returns the identity of this coordinator.
    pub(crate) fn own(&self) -> &OwnIdentity {
        &self.own
    }

    /// Returns a client for the coordinator at `url`.
    pub(crate) fn connect(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        self.directory.peer(url)
    }

    /// Returns the addresses of all links.
    pub(crate) fn urls(&self) -> Vec<String> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.values().map(|link| link.address.url.clone()).collect()
    }

    /// Sets the ids of removed members.
    pub(crate) fn set_removed(&self, removed: &[MemberId]) {
        let mut known = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        *known = removed.iter().copied().collect();
    }

    /// Rejects a coordinator that was removed from the cluster.
    pub(crate) fn check_not_removed(&self, caller: &MemberInfo) -> Result<(), ServiceError> {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = MemberId::new(caller.id).filter(|id| removed.contains(id));
        rejected.map_or(Ok(()), |id| Err(removed_member(id)))
    }

    /// Opens and closes links to match the addresses. Returns the outcomes of messages on closed links.
    pub(crate) fn update_links(&self, addresses: &BTreeMap<MemberId, PeerAddress>) -> Vec<SendOutcome> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let is_closed =
            |id: &MemberId, link: &mut Link| addresses.get(id).is_none_or(|address| !link.leads_to(address));
        // Raft sends no further messages to a member until the outcome of a snapshot is reported.
        let lost = links.extract_if(.., is_closed).map(|(id, _)| SendOutcome::Snapshot(id, false)).collect();
        for (id, address) in addresses.iter().filter(|(id, _)| **id != self.own.id) {
            if let Some(link) = links.get_mut(id) {
                link.address.clone_from(address);
                continue;
            }
            match self.connect(&address.url) {
                Ok(peer) => {
                    let (queue, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
                    let (own, deliveries) = (Arc::clone(&self.own), self.deliveries.clone());
                    let work = deliver((own, *id), Arc::clone(&peer), messages, deliveries);
                    let link = Link { address: address.clone(), peer, queue, task: tokio::spawn(work) };
                    links.insert(*id, link);
                }
                Err(refusal) => tracing::warn!(%refusal, "cannot connect to a coordinator"),
            }
        }
        lost
    }

    /// Queues messages for their members. Returns the outcomes of messages that could not be queued.
    pub(crate) fn send(&self, messages: Vec<Message>) -> Vec<SendOutcome> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        for message in messages {
            let Some(id) = MemberId::new(message.to) else { continue };
            let has_snapshot = feedline_raft::has_snapshot(&message);
            if links.get(&id).is_none_or(|link| link.queue.try_send(message).is_err()) {
                failed.push(SendOutcome::Failed(id));
                if has_snapshot {
                    failed.push(SendOutcome::Snapshot(id, false));
                }
            }
        }
        failed
    }

    /// Returns one client for each address of another member, with the id of the member.
    fn clients(&self) -> Vec<(MemberId, Arc<dyn PeerService>)> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut urls = BTreeSet::new();
        let members = links.iter().filter(|(_, link)| link.address.is_member);
        members
            .filter(|(_, link)| urls.insert(link.address.url.as_str()))
            .map(|(id, link)| (*id, Arc::clone(&link.peer)))
            .collect()
    }

    /// Saves an index on `needed` other coordinators. Retries until that number of coordinators, or all other members, have
    /// saved the index. Members may move to other addresses, join or be removed meanwhile.
    ///
    /// # Errors
    /// Returns the message of a coordinator that rejects the index.
    pub(crate) async fn store_index(
        &self,
        needed: usize,
        key: &str,
        manifest: &Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), String> {
        let mut saves = FuturesUnordered::new();
        let mut asked: Vec<Arc<dyn PeerService>> = Vec::new();
        let mut saved: BTreeSet<MemberId> = BTreeSet::new();
        loop {
            let clients = self.clients();
            // The copy of a removed member does not count.
            let copies = clients.iter().filter(|(id, _)| saved.contains(id)).count();
            if copies >= needed || copies == clients.len() {
                return Ok(());
            }
            for (id, client) in clients {
                if !asked.iter().any(|other| Arc::ptr_eq(other, &client)) {
                    asked.push(Arc::clone(&client));
                    saves.push(save_until_done(id, client, key, manifest, in_use));
                }
            }
            tokio::select! {
                Some(done) = saves.next() => drop(saved.insert(done?)),
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
    }

    /// Asks the coordinator at an address for its id.
    pub(crate) async fn introduce(&self, url: &str) -> Result<MemberInfo, ServiceError> {
        self.connect(url)?.introduce(self.own.info()).await
    }

    /// Loads an index from another coordinator.
    pub(crate) async fn load_index(&self, key: &str, reference: &str) -> Option<Arc<Manifest>> {
        for (_, peer) in self.clients() {
            let Ok(manifest) = peer.load_index(key, reference).await else { continue };
            let reference = reference.to_owned();
            // The id is a hash of the whole index.
            let checked =
                tokio::task::spawn_blocking(move || manifest.is_index(&reference).then_some(manifest));
            if let Ok(Some(manifest)) = checked.await {
                return Some(manifest);
            }
        }
        None
    }
}

/// Saves an index on one coordinator, and returns its id.
async fn save_until_done(
    id: MemberId,
    peer: Arc<dyn PeerService>,
    key: &str,
    manifest: &Arc<Manifest>,
    in_use: &[String],
) -> Result<MemberId, String> {
    while let Err(refusal) = peer.store_index(key, Arc::clone(manifest), in_use).await {
        if refusal.kind == ServiceErrorKind::Invalid {
            return Err(refusal.message);
        }
        tracing::debug!(%refusal, "another coordinator could not save the index");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(id)
}

/// Sends the queued messages for one member in batches.
async fn deliver(
    (own, id): (Arc<OwnIdentity>, MemberId),
    peer: Arc<dyn PeerService>,
    mut messages: mpsc::Receiver<Message>,
    deliveries: mpsc::Sender<SendOutcome>,
) {
    let mut batch = Vec::with_capacity(MAX_BATCH_MESSAGES);
    while messages.recv_many(&mut batch, MAX_BATCH_MESSAGES).await > 0 {
        let has_snapshot = batch.iter().any(feedline_raft::has_snapshot);
        let encoded: Vec<Bytes> = batch.drain(..).filter_map(|it| feedline_raft::encode(&it)).collect();
        let arrived = peer.deliver(own.info(), encoded).await.is_ok();
        if has_snapshot && deliveries.send(SendOutcome::Snapshot(id, arrived)).await.is_err() {
            return;
        }
        if !arrived && deliveries.send(SendOutcome::Failed(id)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
