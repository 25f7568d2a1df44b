//! Fetches that have not said what they want. Whoever reaches the port can begin one, so they have an end, and where there
//! are too many the oldest give way: a client says at once what it wants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// At once, of all clients.
const MOST: usize = 1024;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct PendingFetches(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    /// By the order in which they came.
    open: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The place of one, until it is dropped.
pub(super) struct PendingFetchPermit {
    all: Arc<PendingFetches>,
    number: u64,
    /// Ends when the place is given to another.
    taken: oneshot::Receiver<()>,
}

impl PendingFetches {
    /// Takes a place, that of the oldest where there is no other.
    pub(super) fn enter(self: &Arc<Self>) -> PendingFetchPermit {
        let (held, taken) = oneshot::channel();
        let mut waiting = self.waiting();
        if waiting.open.len() >= MOST {
            drop(waiting.open.pop_first());
        }
        waiting.last += 1;
        let number = waiting.last;
        waiting.open.insert(number, held);
        drop(waiting);
        PendingFetchPermit { all: Arc::clone(self), number, taken }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingFetchPermit {
    /// Waits until another one takes the place.
    pub(super) async fn taken(&mut self) {
        // Nothing is ever sent: it ends as its other end is dropped.
        let _ = (&mut self.taken).await;
    }
}

impl Drop for PendingFetchPermit {
    fn drop(&mut self) {
        self.all.waiting().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_oldest_gives_way_and_what_is_dropped_leaves_room() {
        let all = Arc::new(PendingFetches::default());
        let mut places: Vec<PendingFetchPermit> = (0..MOST).map(|_| all.enter()).collect();
        drop(places.pop());
        let fits = all.enter();
        assert!(places[0].taken().now_or_never().is_none());
        let late = all.enter();
        assert!(places[0].taken().now_or_never().is_some());
        assert!(places[1].taken().now_or_never().is_none());
        drop((places, fits, late));
        assert!(all.waiting().open.is_empty());
    }
}
