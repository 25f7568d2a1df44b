//! How many Flight clients are served at once: in all, and of one connection, so that one that opens very many leaves room
//! for others.

use std::sync::Arc;

use feedline_access::concurrency_limit::{self, LimitReached};
use feedline_core::cluster::messages::ServiceError;
use feedline_proto::Caller;

/// Time after which asking again may help.
pub(super) const RETRY_MS: u64 = 1_000;

/// Room for one kind of request.
pub(super) struct FlightLimit {
    /// What there is room for.
    what: &'static str,
    places: Arc<concurrency_limit::ConcurrencyLimit<Option<Caller>>>,
}

/// A place, until it is dropped.
pub(super) type FlightPermit = concurrency_limit::ConcurrencyPermit<Option<Caller>>;

impl FlightLimit {
    /// Room for `most` of `what`, and `of_one` of one connection.
    pub(super) fn new(what: &'static str, most: u32, of_one: u32) -> Self {
        Self { what, places: concurrency_limit::ConcurrencyLimit::new(most, of_one, |_| {}) }
    }

    /// Takes a place for whoever asks.
    ///
    /// # Errors
    /// When there is none, with the time to wait.
    pub(super) fn enter(&self) -> Result<FlightPermit, ServiceError> {
        self.places.enter(Caller::current()).map_err(|full| self.refused(full))
    }

    fn refused(&self, full: LimitReached) -> ServiceError {
        let (who, most) = match full {
            LimitReached::OfAll(most) => ("this coordinator serves", most),
            LimitReached::OfOne(most) => ("this client has", most),
        };
        let what = self.what;
        ServiceError::busy(
            format!(
                "{who} {most} {what} at once, as many as there may be; ask again later, or read with the client library"
            ),
            RETRY_MS,
        )
    }
}

#[cfg(test)]
mod tests {
    use feedline_core::cluster::messages::ServiceErrorKind;

    use super::*;

    async fn enter(limit: &FlightLimit, caller: Caller) -> Result<FlightPermit, ServiceError> {
        caller.answers(async { limit.enter() }).await
    }

    #[tokio::test]
    async fn one_client_leaves_room_for_others_and_all_have_an_end() {
        let limit = FlightLimit::new("Flight streams", 3, 2);
        let (greedy, other) = (Caller::next(), Caller::next());
        let places = [enter(&limit, greedy).await.unwrap(), enter(&limit, greedy).await.unwrap()];
        let refusal = enter(&limit, greedy).await.err().unwrap();
        assert_eq!((refusal.kind, refusal.retry_after_ms), (ServiceErrorKind::Busy, Some(RETRY_MS)));
        assert!(refusal.message.starts_with("this client has 2 Flight streams at once"), "{refusal}");
        let third = enter(&limit, other).await.unwrap();
        let refusal = enter(&limit, other).await.err().unwrap();
        assert!(refusal.message.starts_with("this coordinator serves 3 Flight streams at once"), "{refusal}");
        drop((places, third));
        assert!(enter(&limit, greedy).await.is_ok(), "who leaves makes limit");
    }
}
