//! Shares the state of a consumer between tasks, and notifies tasks of changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::state::ConsumerState;

/// The state, shared by the user's task, the session and the fetches.
pub(crate) struct SharedState {
    state: Mutex<ConsumerState>,
    /// Notified when a batch may have arrived.
    consumer: Notify,
    /// Notified when the session may have work.
    session: Notify,
}

impl SharedState {
    pub(crate) fn new(state: ConsumerState) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), consumer: Notify::new(), session: Notify::new() })
    }

    /// Locks the state. No caller holds the lock across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ConsumerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a batch may have arrived. Returns immediately if there was a notification since the last call.
    pub(crate) async fn batch_notified(&self) {
        self.consumer.notified().await;
    }

    /// Waits until the session may have work.
    pub(crate) async fn session_notified(&self) {
        self.session.notified().await;
    }

    pub(crate) fn notify_session(&self) {
        self.session.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.consumer.notify_one();
        self.session.notify_one();
    }
}
