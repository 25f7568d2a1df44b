//! The service of a coordinator for the other coordinators.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PeerService};
use feedline_raft::{MemberId, Message};
use tokio::sync::{mpsc, oneshot};

use crate::driver::DriverCommand;
use crate::index_store::IndexStore;
use crate::peer_event::PeerEvent;
use crate::peers::Peers;
use crate::request::shutting_down;

/// Maximum number of queued events of other coordinators for the driver. Further senders wait.
pub(crate) const MAX_QUEUED_EVENTS: usize = 64;

/// The service for other coordinators.
pub(crate) struct RaftPeerService {
    pub(crate) peers: Arc<Peers>,
    pub(crate) inbox: mpsc::Sender<PeerEvent>,
    pub(crate) commands: mpsc::Sender<DriverCommand>,
    pub(crate) store: Arc<IndexStore>,
}

impl RaftPeerService {
    /// Reads or writes an index on a blocking thread.
    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&IndexStore) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let store = Arc::clone(&self.store);
        let result = tokio::task::spawn_blocking(move || work(&store)).await.map_err(|_| shutting_down())?;
        result.map_err(|message| ServiceError::new(ServiceErrorKind::Unavailable, message))
    }
}

#[async_trait]
impl PeerService for RaftPeerService {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        self.peers.check_not_removed(&from)?;
        // The caller repeats its introduction. An introduction does not wait, because a new coordinator reads its events only
        // after all coordinators have introduced themselves.
        let _ = self.inbox.try_send(PeerEvent::Introduced(from));
        Ok(self.peers.own().info())
    }

    async fn join(&self, from: MemberInfo) -> Result<(), ServiceError> {
        self.peers.check_not_removed(&from)?;
        let Some(id) = MemberId::new(from.id).filter(|_| !from.url.is_empty()) else {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "the coordinator states no id or no address; run the same release on all coordinators",
            ));
        };
        let (reply, answer) = oneshot::channel();
        let command = DriverCommand::Join { id, url: from.url, reply };
        self.commands.send(command).await.map_err(|_| shutting_down())?;
        answer.await.map_err(|_| shutting_down())?
    }

    async fn deliver(&self, sender: MemberInfo, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        self.peers.check_not_removed(&sender)?;
        let messages: Result<Vec<Message>, String> =
            messages.iter().map(|bytes| feedline_raft::decode(bytes)).collect();
        let messages = messages.map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))?;
        let event = PeerEvent::Messages { sender, messages };
        self.inbox.send(event).await.map_err(|_| shutting_down())
    }

    async fn store_index(
        &self,
        key: &str,
        manifest: Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), ServiceError> {
        let (key, in_use) = (check_key(key)?.to_owned(), in_use.to_vec());
        self.with_store(move |store| store.save(&key, &manifest, &in_use)).await
    }

    async fn load_index(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        let (key, reference) = (check_key(key)?.to_owned(), reference.to_owned());
        self.with_store(move |store| store.manifest(&key, &reference)).await
    }
}

/// Checks the key of an index, which is used as a file name.
fn check_key(key: &str) -> Result<&str, ServiceError> {
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_key.then_some(key).ok_or_else(|| {
        ServiceError::new(
            ServiceErrorKind::Invalid,
            format!("invalid index key `{key}`: expected hexadecimal digits"),
        )
    })
}
