//! Limits the concurrent Flight requests, in total and per connection, so that one client cannot block all others.

use std::sync::Arc;

use feedline_common::concurrency_limit::{self, LimitReached};
use feedline_data::messages::ServiceError;
use feedline_proto::Caller;

/// Time after which a rejected client should retry.
pub(super) const RETRY_MS: u64 = 1_000;

/// The concurrency limit for one kind of request.
pub(super) struct FlightLimit {
    /// Plural name of the requests, for messages.
    requests: &'static str,
    limit: Arc<concurrency_limit::ConcurrencyLimit<Option<Caller>>>,
}

/// The permit for one request. Dropping it releases the permit.
pub(super) type FlightPermit = concurrency_limit::ConcurrencyPermit<Option<Caller>>;

impl FlightLimit {
    /// Creates a limit of `max` requests in total and `max_per_connection` requests per connection.
    pub(super) fn new(requests: &'static str, max: u32, max_per_connection: u32) -> Self {
        Self { requests, limit: concurrency_limit::ConcurrencyLimit::new(max, max_per_connection, |_| {}) }
    }

    /// Acquires a permit for the current caller.
    ///
    /// # Errors
    /// Returns an error if the limit is reached. The error contains the time to wait.
    pub(super) fn acquire(&self) -> Result<FlightPermit, ServiceError> {
        self.limit.acquire(Caller::current()).map_err(|reached| self.limit_error(reached))
    }

    fn limit_error(&self, reached: LimitReached) -> ServiceError {
        let (owner, max) = match reached {
            LimitReached::Total(max) => ("this coordinator", max),
            LimitReached::PerClient(max) => ("this client", max),
        };
        let requests = self.requests;
        ServiceError::busy(
            format!(
                "{owner} has reached its limit of {max} {requests}: retry later, or use the client library"
            ),
            RETRY_MS,
        )
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::messages::ServiceErrorKind;

    use super::*;

    async fn acquire(limit: &FlightLimit, caller: Caller) -> Result<FlightPermit, ServiceError> {
        caller.scope(async { limit.acquire() }).await
    }

    #[tokio::test]
    async fn requests_are_limited_per_client_and_in_total() {
        let limit = FlightLimit::new("Flight streams", 3, 2);
        let (greedy, other) = (Caller::unique(), Caller::unique());
        let permits = [acquire(&limit, greedy).await.unwrap(), acquire(&limit, greedy).await.unwrap()];
        let error = acquire(&limit, greedy).await.err().unwrap();
        assert_eq!((error.kind, error.retry_after_ms), (ServiceErrorKind::Busy, Some(RETRY_MS)));
        assert!(error.message.contains("this client has reached its limit of 2 Flight streams"), "{error}");
        let third = acquire(&limit, other).await.unwrap();
        let error = acquire(&limit, other).await.err().unwrap();
        assert!(
            error.message.contains("this coordinator has reached its limit of 3 Flight streams"),
            "{error}"
        );
        drop((permits, third));
        assert!(acquire(&limit, greedy).await.is_ok(), "a dropped permit allows another request");
    }
}
