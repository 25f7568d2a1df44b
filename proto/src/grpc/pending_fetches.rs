//! Fetches whose first request has not arrived. Every client that reaches the port can open such a fetch, so their number is
//! limited: the oldest fetch is evicted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Maximum number of pending fetches of all clients.
const MAX_PENDING: usize = 1024;

/// All pending fetches of a server.
#[derive(Debug, Default)]
pub(super) struct PendingFetches(Mutex<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    last_number: u64,
    /// Pending fetches by number, oldest first.
    open: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The registration of a pending fetch. Dropping it ends the registration.
pub(super) struct PendingFetchPermit {
    fetches: Arc<PendingFetches>,
    number: u64,
    /// Closes when the fetch is evicted.
    eviction: oneshot::Receiver<()>,
}

impl PendingFetches {
    /// Registers a fetch. Evicts the oldest fetch if there are too many.
    pub(super) fn register(self: &Arc<Self>) -> PendingFetchPermit {
        let (sender, eviction) = oneshot::channel();
        let mut state = self.state();
        if state.open.len() >= MAX_PENDING {
            drop(state.open.pop_first());
        }
        state.last_number += 1;
        let number = state.last_number;
        state.open.insert(number, sender);
        drop(state);
        PendingFetchPermit { fetches: Arc::clone(self), number, eviction }
    }

    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingFetchPermit {
    /// Waits until the fetch is evicted.
    pub(super) async fn evicted(&mut self) {
        // The sender never sends. The channel closes when the registry drops the sender.
        let _ = (&mut self.eviction).await;
    }
}

impl Drop for PendingFetchPermit {
    fn drop(&mut self) {
        self.fetches.state().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_oldest_fetch_is_evicted_and_a_dropped_fetch_frees_its_place() {
        let fetches = Arc::new(PendingFetches::default());
        let mut permits: Vec<PendingFetchPermit> = (0..MAX_PENDING).map(|_| fetches.register()).collect();
        drop(permits.pop());
        let fits = fetches.register();
        assert!(permits[0].evicted().now_or_never().is_none());
        let late = fetches.register();
        assert!(permits[0].evicted().now_or_never().is_some());
        assert!(permits[1].evicted().now_or_never().is_none());
        drop((permits, fits, late));
        assert!(fetches.state().open.is_empty());
    }
}
