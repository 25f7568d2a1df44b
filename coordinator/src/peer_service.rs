//! The service of a coordinator for the other coordinators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PeerService};
use feedline_raft::{MemberId, Message};
use tokio::sync::mpsc;

use crate::index_store::IndexStore;
use crate::request::shutting_down;

/// Maximum number of queued message batches for the driver. Further senders wait.
pub(crate) const MAX_QUEUED_BATCHES: usize = 64;

/// The service for other coordinators.
pub(crate) struct RaftPeerService {
    pub(crate) id: MemberId,
    /// Whether the coordinator is or was part of a cluster.
    pub(crate) has_state: Arc<AtomicBool>,
    pub(crate) inbox: mpsc::Sender<Vec<Message>>,
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
    async fn introduce(&self, _from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        Ok(MemberInfo { id: self.id.get(), has_state: self.has_state.load(Ordering::Acquire) })
    }

    async fn deliver(&self, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        let messages: Result<Vec<Message>, String> =
            messages.iter().map(|bytes| feedline_raft::decode(bytes)).collect();
        let messages = messages.map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))?;
        self.inbox.send(messages).await.map_err(|_| shutting_down())
    }

    async fn store_index(&self, key: &str, manifest: Arc<Manifest>) -> Result<(), ServiceError> {
        let key = check_key(key)?.to_owned();
        self.with_store(move |store| store.save(&key, &manifest)).await
    }

    async fn load_index(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError> {
        let (key, fingerprint) = (check_key(key)?.to_owned(), fingerprint.to_owned());
        self.with_store(move |store| store.manifest(&key, &fingerprint)).await
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
