//! Who asks, as far as the connection tells. It rides with the task that answers a request, so that services that serve askers
//! in turn need no argument for it, and those that do not care do not see it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static CALLER: Caller;
}

/// Connections so far.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// One who asks: a connection from another process. It says nothing of who that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(u64);

impl Caller {
    /// A new one.
    pub fn next() -> Self {
        Self(CONNECTIONS.fetch_add(1, Ordering::Relaxed))
    }

    /// Who asked for what this task is at; `None` where the request came from this process.
    pub fn current() -> Option<Self> {
        CALLER.try_with(|caller| *caller).ok()
    }

    /// Runs what answers a request of this caller. Tasks that it spawns are nobody's.
    pub fn answers<F: Future>(self, answering: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, answering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_has_its_caller_and_what_it_spawns_has_none() {
        assert_eq!(Caller::current(), None);
        let (one, other) = (Caller::next(), Caller::next());
        assert_ne!(one, other);
        let seen = one.answers(async {
            tokio::task::yield_now().await;
            let within = other.answers(async { Caller::current() }).await;
            let spawned = tokio::spawn(async { Caller::current() }).await.unwrap();
            (within, Caller::current(), spawned)
        });
        assert_eq!(seen.await, (Some(other), Some(one), None));
        assert_eq!(Caller::current(), None);
    }
}
