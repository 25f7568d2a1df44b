//! How many fetches may be open at once: in all, and of one client, so that one that opens very many leaves room for others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_access::ticket::Ticket;
use feedline_core::cluster::messages::Refusal;
use feedline_core::ids::{JobId, SessionId};
use feedline_proto::Caller;

use crate::metrics;

/// Fetches end as splits do, many in a second.
const RETRY_MS: u64 = 100;
/// One client may have this part of all.
const CLIENT_PART: u32 = 4;

/// Room for fetches.
#[derive(Debug)]
pub(crate) struct FetchRoom {
    /// In all.
    most: u32,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: u32,
    by_client: BTreeMap<Client, u32>,
}

/// Whose fetches count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// A session of a job's consumer, over however many connections it fetches.
    Consumer(JobId, u32, SessionId),
    /// A connection, where nobody has tickets.
    Connection(Caller),
}

impl Client {
    fn new(caller: Caller, ticket: Option<&Ticket>) -> Self {
        match ticket {
            Some(ticket) => Self::Consumer(ticket.job, ticket.consumer, ticket.session),
            None => Self::Connection(caller),
        }
    }
}

/// The place of a fetch, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<FetchRoom>,
    client: Option<Client>,
}

impl FetchRoom {
    /// Room for so many.
    pub(crate) fn new(most: u32) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), open: Mutex::default() })
    }

    /// Takes a place for a fetch of whoever asks, whom its ticket tells better than its connection. Consumers in this process
    /// count, and are never refused: they share its fate.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn enter(self: &Arc<Self>, ticket: Option<&Ticket>) -> Result<Place, Refusal> {
        let client = Caller::current().map(|caller| Client::new(caller, ticket));
        let of_one = (self.most / CLIENT_PART).max(1);
        let mut open = self.open();
        if let Some(client) = client {
            if open.all >= self.most {
                let fix = "raise the worker's --max-fetches, or add workers";
                return Err(refused("this worker serves", self.most, fix));
            }
            let own = open.by_client.get(&client).copied().unwrap_or(0);
            if own >= of_one {
                return Err(refused("this client has", of_one, "fetch from it in fewer streams at a time"));
            }
            open.by_client.insert(client, own + 1);
        }
        open.all += 1;
        metrics::set_open_fetches(open.all);
        drop(open);
        Ok(Place { room: Arc::clone(self), client })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.room.open();
        open.all = open.all.saturating_sub(1);
        metrics::set_open_fetches(open.all);
        let Some(client) = self.client else { return };
        if let Some(own) = open.by_client.get_mut(&client) {
            *own -= 1;
            if *own == 0 {
                open.by_client.remove(&client);
            }
        }
    }
}

fn refused(who: &str, most: u32, fix: &str) -> Refusal {
    metrics::count_refused_fetch();
    Refusal::busy(
        format!("{who} {most} fetches at once, as many as there may be; ask again later, or {fix}"),
        RETRY_MS,
    )
}

#[cfg(test)]
mod tests {
    use feedline_core::cluster::messages::RefusalKind;

    use super::*;

    async fn enter(room: &Arc<FetchRoom>, caller: Caller) -> Result<Place, Refusal> {
        caller.answers(async { room.enter(None) }).await
    }

    #[tokio::test]
    async fn one_client_has_a_part_and_all_together_have_an_end() {
        let room = FetchRoom::new(8);
        let greedy = Caller::next();
        let mut places = vec![enter(&room, greedy).await.unwrap(), enter(&room, greedy).await.unwrap()];
        let refusal = enter(&room, greedy).await.unwrap_err();
        assert_eq!((refusal.kind, refusal.retry_after_ms), (RefusalKind::Busy, Some(RETRY_MS)));
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
        drop(places);
        let open = room.open();
        assert_eq!((open.all, open.by_client.len()), (0, 0), "nobody is remembered");
    }

    #[tokio::test]
    async fn a_session_has_its_part_over_however_many_connections_it_fetches() {
        let room = FetchRoom::new(8);
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
        let room = FetchRoom::new(8);
        let places: Vec<Place> = (0..9).map(|_| room.enter(None).unwrap()).collect();
        assert!(enter(&room, Caller::next()).await.is_err());
        drop(places);
        assert!(enter(&room, Caller::next()).await.is_ok());
    }
}
