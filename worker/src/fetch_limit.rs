//! How many fetches may be open at once: in all, and of one client, so that one that opens very many leaves room for others.

use std::sync::Arc;

use feedline_access::concurrency_limit::{self, ConcurrencyLimit, LimitReached};
use feedline_access::ticket::Ticket;
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::ServiceError;
use feedline_proto::Caller;

use crate::metrics;

/// Fetches end as splits do, many in a second.
const RETRY_MS: u64 = 100;
/// One client may have this part of all.
const CLIENT_PART: u32 = 4;

/// Room for fetches.
#[derive(Debug)]
pub(crate) struct FetchLimit(Arc<ConcurrencyLimit<FetchClient>>);

/// The place of a fetch, until it is dropped.
pub(crate) type FetchPermit = concurrency_limit::ConcurrencyPermit<FetchClient>;

/// Whose fetches count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FetchClient {
    /// A session of a job's consumer, over however many connections it fetches.
    Consumer(JobId, u32, SessionId),
    /// A connection, where nobody has tickets.
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
    /// Room for so many.
    pub(crate) fn new(most: u32) -> Self {
        let most = most.max(1);
        Self(ConcurrencyLimit::new(most, (most / CLIENT_PART).max(1), metrics::set_open_fetches))
    }

    /// Takes a place for a fetch of whoever asks, whom its ticket tells better than its connection. Consumers in this process
    /// count, and are never refused: they share its fate.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn enter(&self, ticket: Option<&Ticket>) -> Result<FetchPermit, ServiceError> {
        match Caller::current() {
            Some(caller) => self.0.enter(FetchClient::new(caller, ticket)).map_err(refused),
            None => Ok(self.0.enter_anyway()),
        }
    }
}

fn refused(full: LimitReached) -> ServiceError {
    metrics::count_refused_fetch();
    let (who, most, fix) = match full {
        LimitReached::OfAll(most) => {
            ("this worker serves", most, "raise the worker's --max-fetches, or add workers")
        }
        LimitReached::OfOne(most) => ("this client has", most, "fetch from it in fewer streams at a time"),
    };
    ServiceError::busy(
        format!("{who} {most} fetches at once, as many as there may be; ask again later, or {fix}"),
        RETRY_MS,
    )
}

#[cfg(test)]
mod tests {
    use feedline_data::messages::ServiceErrorKind;

    use super::*;

    async fn enter(room: &FetchLimit, caller: Caller) -> Result<FetchPermit, ServiceError> {
        caller.answers(async { room.enter(None) }).await
    }

    #[tokio::test]
    async fn one_client_has_a_part_and_all_together_have_an_end() {
        let room = FetchLimit::new(8);
        let greedy = Caller::next();
        let mut places = vec![enter(&room, greedy).await.unwrap(), enter(&room, greedy).await.unwrap()];
        let refusal = enter(&room, greedy).await.unwrap_err();
        assert_eq!((refusal.kind, refusal.retry_after_ms), (ServiceErrorKind::Busy, Some(RETRY_MS)));
        assert!(refusal.message.starts_with("this client has 2 fetches at once"), "{refusal}");
        for _ in 0..3 {
            let other = Caller::next();
            places.push(enter(&room, other).await.unwrap());
            places.push(enter(&room, other).await.unwrap());
        }
        let refusal = enter(&room, Caller::next()).await.unwrap_err();
        assert!(refusal.message.starts_with("this worker serves 8 fetches at once"), "{refusal}");
        places.remove(0);
        places.push(enter(&room, greedy).await.unwrap());
        assert!(enter(&room, Caller::next()).await.is_err());
    }

    #[tokio::test]
    async fn a_session_has_its_part_over_however_many_connections_it_fetches() {
        let room = FetchLimit::new(8);
        let enter_with = async |session| {
            let ticket = Ticket { job: JobId(1), consumer: 0, session: SessionId(session), expires_s: 0 };
            Caller::next().answers(async { room.enter(Some(&ticket)) }).await
        };
        let _places = [enter_with(1).await.unwrap(), enter_with(1).await.unwrap()];
        let refusal = enter_with(1).await.unwrap_err();
        assert!(refusal.message.starts_with("this client has 2 fetches at once"), "{refusal}");
        assert!(enter_with(2).await.is_ok(), "another has a part of its own");
    }

    #[tokio::test]
    async fn consumers_in_this_process_count_and_are_not_refused() {
        let room = FetchLimit::new(8);
        let places: Vec<FetchPermit> = (0..9).map(|_| room.enter(None).unwrap()).collect();
        assert!(enter(&room, Caller::next()).await.is_err());
        drop(places);
        assert!(enter(&room, Caller::next()).await.is_ok());
    }
}
