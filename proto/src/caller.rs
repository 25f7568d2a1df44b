//! The connection that a request came from. A task-local variable contains the connection, so that only services that
//! distinguish clients have to read it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static CALLER: Caller;
}

/// Number of callers created so far.
static CALLER_COUNT: AtomicU64 = AtomicU64::new(0);

/// A connection from another process. It does not identify a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(u64);

impl Caller {
    /// Returns a caller that differs from all other callers.
    pub fn unique() -> Self {
        Self(CALLER_COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the caller of the request that this task serves; `None` for a request from this process.
    pub fn current() -> Option<Self> {
        CALLER.try_with(|caller| *caller).ok()
    }

    /// Runs a future with this caller as the current one. Tasks that the future spawns have no caller.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_has_its_caller_and_a_spawned_task_has_none() {
        assert_eq!(Caller::current(), None);
        let (first, second) = (Caller::unique(), Caller::unique());
        assert_ne!(first, second);
        let callers = first.scope(async {
            tokio::task::yield_now().await;
            let nested = second.scope(async { Caller::current() }).await;
            let spawned = tokio::spawn(async { Caller::current() }).await.unwrap();
            (nested, Caller::current(), spawned)
        });
        assert_eq!(callers.await, (Some(second), Some(first), None));
        assert_eq!(Caller::current(), None);
    }
}
