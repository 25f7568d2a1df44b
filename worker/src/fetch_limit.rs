//! Limits concurrent fetches in total and per client, so that one client cannot use the whole limit.

use std::sync::Arc;

use feedline_access::ticket::Ticket;
use feedline_common::concurrency_limit::{self, ConcurrencyLimit, LimitReached};
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::ServiceError;
use feedline_proto::Caller;

use crate::metrics;

/// Pause before a client retries a rejected fetch. It is short, because many fetches end every second.
const RETRY_MS: u64 = 100;
/// One client may have at most 1 / `CLIENT_SHARE_DIVISOR` of the maximum number of fetches open.
const CLIENT_SHARE_DIVISOR: u32 = 4;

/// Limits the number of open fetches on a worker.
#[derive(Debug)]
pub(crate) struct FetchLimit(Arc<ConcurrencyLimit<FetchClient>>);

/// The permit of one open fetch.
pub(crate) type FetchPermit = concurrency_limit::ConcurrencyPermit<FetchClient>;

/// The client whose limit a fetch counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FetchClient {
    /// A session of a consumer, which may have several connections. The ticket of the fetch identifies the session.
    Consumer(JobId, u32, SessionId),
    /// A connection, if the worker does not require tickets.
    Connection(Caller),
}

impl FetchClient {
    fn new(caller: Caller, ticket: Option<&Ticket>) -> Self {
        match ticket {
            Some(ticket) => Self::Consumer(ticket.job, ticket.consumer, ticket.session),
            None => Self::Connection(caller),
        }
    }
}

impl FetchLimit {
    pub(crate) fn new(max_fetches: u32) -> Self {
        let max_fetches = max_fetches.max(1);
        let max_per_client = (max_fetches / CLIENT_SHARE_DIVISOR).max(1);
        Self(ConcurrencyLimit::new(max_fetches, max_per_client, metrics::set_open_fetches))
    }

    /// Acquires a permit for a fetch of the current caller. Fetches of consumers in this process count, but are never rejected.
    ///
    /// # Errors
    /// Returns an error if a limit is reached.
    pub(crate) fn acquire(&self, ticket: Option<&Ticket>) -> Result<FetchPermit, ServiceError> {
        match Caller::current() {
            Some(caller) => self.0.acquire(FetchClient::new(caller, ticket)).map_err(rejection),
            None => Ok(self.0.acquire_always()),
        }
    }
}

fn rejection(limit: LimitReached) -> ServiceError {
    metrics::count_refused_fetch();
    let (owner, max_fetches, fix) = match limit {
        LimitReached::Total(max) => ("this worker", max, "raise the workers' --max-fetches, or add workers"),
        LimitReached::PerClient(max) => ("this client", max, "open fewer streams concurrently"),
    };
    let message =
        format!("{owner} has reached the limit of {max_fetches} open fetches; retry later, or {fix}");
    ServiceError::busy(message, RETRY_MS)
}

#[cfg(test)]
mod tests {
    use feedline_data::messages::ServiceErrorKind;

    use super::*;

    async fn acquire(limit: &FetchLimit, caller: Caller) -> Result<FetchPermit, ServiceError> {
        caller.scope(async { limit.acquire(None) }).await
    }

    #[tokio::test]
    async fn one_client_may_open_a_quarter_of_all_fetches() {
        let limit = FetchLimit::new(8);
        let greedy = Caller::unique();
        let mut permits =
            vec![acquire(&limit, greedy).await.unwrap(), acquire(&limit, greedy).await.unwrap()];
        let refusal = acquire(&limit, greedy).await.unwrap_err();
        assert_eq!((refusal.kind, refusal.retry_after_ms), (ServiceErrorKind::Busy, Some(RETRY_MS)));
        assert!(
            refusal.message.starts_with("this client has reached the limit of 2 open fetches"),
            "{refusal}"
        );
        for _ in 0..3 {
            let other = Caller::unique();
            permits.push(acquire(&limit, other).await.unwrap());
            permits.push(acquire(&limit, other).await.unwrap());
        }
        let refusal = acquire(&limit, Caller::unique()).await.unwrap_err();
        assert!(
            refusal.message.starts_with("this worker has reached the limit of 8 open fetches"),
            "{refusal}"
        );
        permits.remove(0);
        permits.push(acquire(&limit, greedy).await.unwrap());
        assert!(acquire(&limit, Caller::unique()).await.is_err());
    }

    #[tokio::test]
    async fn fetches_of_one_session_count_together_over_all_connections() {
        let limit = FetchLimit::new(8);
        let acquire_with = async |session| {
            let ticket = Ticket { job: JobId(1), consumer: 0, session: SessionId(session), expires_s: 0 };
            Caller::unique().scope(async { limit.acquire(Some(&ticket)) }).await
        };
        let _permits = [acquire_with(1).await.unwrap(), acquire_with(1).await.unwrap()];
        let refusal = acquire_with(1).await.unwrap_err();
        assert!(
            refusal.message.starts_with("this client has reached the limit of 2 open fetches"),
            "{refusal}"
        );
        assert!(acquire_with(2).await.is_ok(), "another session has its own limit");
    }

    #[tokio::test]
    async fn consumers_in_this_process_count_and_are_not_rejected() {
        let limit = FetchLimit::new(8);
        let permits: Vec<FetchPermit> = (0..9).map(|_| limit.acquire(None).unwrap()).collect();
        assert!(acquire(&limit, Caller::unique()).await.is_err());
        drop(permits);
        assert!(acquire(&limit, Caller::unique()).await.is_ok());
    }
}
