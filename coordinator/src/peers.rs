//! The other coordinators: a queue of messages for each, and what they keep for each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_access::Credentials;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PeerService, grpc};
use feedline_raft::{MemberId, Members, Message};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Messages for one coordinator that wait; more are dropped, as on a bad network.
const QUEUED_MESSAGES: usize = 4096;
/// Deliveries whose outcome the driver has not heard of yet; peers are given nothing more meanwhile.
const QUEUED_DELIVERIES: usize = 64;
/// Messages that travel together.
const MESSAGES_TOGETHER: usize = 256;
/// Pause before something is tried again that nobody may give up.
const RETRY: Duration = Duration::from_millis(200);

/// How coordinators find each other.
pub trait PeerDirectory: Send + Sync {
    /// The coordinator at `url`.
    ///
    /// # Errors
    /// For an address that cannot be one.
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError>;
}

/// Coordinators behind gRPC.
#[derive(Debug, Clone, Default)]
pub struct GrpcPeers {
    /// What this one shows to them.
    pub credentials: Credentials,
}

impl PeerDirectory for GrpcPeers {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        grpc::connect_peer(url, &self.credentials)
    }
}

/// What became of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// A coordinator did not take them.
    Failed(MemberId),
    /// A snapshot has arrived, or has not.
    Snapshot(MemberId, bool),
}

/// The way to one coordinator.
struct Link {
    url: String,
    peer: Arc<dyn PeerService>,
    queue: mpsc::Sender<Message>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The other coordinators.
pub(crate) struct Peers {
    own: MemberId,
    directory: Arc<dyn PeerDirectory>,
    deliveries: mpsc::Sender<SendOutcome>,
    links: Mutex<BTreeMap<MemberId, Link>>,
}

impl Peers {
    pub(crate) fn new(
        own: MemberId,
        directory: Arc<dyn PeerDirectory>,
    ) -> (Self, mpsc::Receiver<SendOutcome>) {
        let (deliveries, heard) = mpsc::channel(QUEUED_DELIVERIES);
        (Self { own, directory, deliveries, links: Mutex::default() }, heard)
    }

    /// Keeps links to these members, and no others; gives what may have been lost on links that are no more.
    pub(crate) fn follow(&self, members: &Members) -> Vec<SendOutcome> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let is_closed = |id: &MemberId, link: &mut Link| members.url(*id) != Some(&link.url);
        // Nothing more would be sent to a member before it is said what became of its snapshot.
        let lost = links.extract_if(.., is_closed).map(|(id, _)| SendOutcome::Snapshot(id, false)).collect();
        for (id, url) in members.0.iter().filter(|(id, _)| **id != self.own) {
            if links.contains_key(id) {
                continue;
            }
            match self.directory.peer(url) {
                Ok(peer) => {
                    let (queue, messages) = mpsc::channel(QUEUED_MESSAGES);
                    let work = deliver(*id, Arc::clone(&peer), messages, self.deliveries.clone());
                    let link = Link { url: url.clone(), peer, queue, task: tokio::spawn(work) };
                    links.insert(*id, link);
                }
                Err(refusal) => tracing::warn!(%refusal, "a coordinator cannot be reached"),
            }
        }
        lost
    }

    /// Sends messages, each to its member; gives what became of those that are not on their way.
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

    /// All of them.
    fn all(&self) -> Vec<Arc<dyn PeerService>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.values().map(|link| Arc::clone(&link.peer)).collect()
    }

    /// Has so many others keep an index; tries until they do.
    ///
    /// # Errors
    /// When one of them never will: its sentence.
    pub(crate) async fn keep_index(
        &self,
        needed: usize,
        key: &str,
        manifest: &Arc<Manifest>,
    ) -> Result<(), String> {
        let mut asked: FuturesUnordered<_> =
            self.all().into_iter().map(|peer| keep_until_done(peer, key, manifest)).collect();
        let mut kept = 0;
        while kept < needed {
            match asked.next().await {
                Some(done) => {
                    done?;
                    kept += 1;
                }
                // There are fewer now.
                None => break,
            }
        }
        Ok(())
    }

    /// Who answers at an address.
    pub(crate) async fn introduce(&self, url: &str) -> Result<MemberInfo, ServiceError> {
        let own = MemberInfo { id: self.own.get(), has_state: true };
        self.directory.peer(url)?.introduce(own).await
    }

    /// The index from whichever has it.
    pub(crate) async fn index(&self, key: &str, fingerprint: &str) -> Option<Arc<Manifest>> {
        for peer in self.all() {
            if let Ok(manifest) = peer.index(key, fingerprint).await
                && manifest.fingerprint() == fingerprint
            {
                return Some(manifest);
            }
        }
        None
    }
}

async fn keep_until_done(
    peer: Arc<dyn PeerService>,
    key: &str,
    manifest: &Arc<Manifest>,
) -> Result<(), String> {
    while let Err(refusal) = peer.keep_index(key, Arc::clone(manifest)).await {
        if refusal.kind == ServiceErrorKind::Invalid {
            return Err(refusal.message);
        }
        tracing::debug!(%refusal, "another coordinator does not keep the index yet");
        tokio::time::sleep(RETRY).await;
    }
    Ok(())
}

/// Delivers a member's messages, those that wait together in one request.
async fn deliver(
    id: MemberId,
    peer: Arc<dyn PeerService>,
    mut messages: mpsc::Receiver<Message>,
    deliveries: mpsc::Sender<SendOutcome>,
) {
    let mut together = Vec::with_capacity(MESSAGES_TOGETHER);
    while messages.recv_many(&mut together, MESSAGES_TOGETHER).await > 0 {
        let has_snapshot = together.iter().any(feedline_raft::has_snapshot);
        let encoded: Vec<Bytes> = together.drain(..).filter_map(|it| feedline_raft::encode(&it)).collect();
        let arrived = peer.deliver(encoded).await.is_ok();
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
