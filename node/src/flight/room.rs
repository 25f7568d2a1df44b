//! How many Flight clients are served at once: in all, and of one connection, so that one that opens very many leaves room
//! for others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_core::cluster::messages::Refusal;
use feedline_proto::Caller;

/// Time after which asking again may help.
pub(super) const RETRY_MS: u64 = 1_000;

/// Room for one kind of request.
pub(super) struct Room {
    /// What there is room for.
    what: &'static str,
    most: u32,
    of_one: u32,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: u32,
    by_caller: BTreeMap<Option<Caller>, u32>,
}

/// A place, until it is dropped.
pub(super) struct Place {
    room: Arc<Room>,
    caller: Option<Caller>,
}

impl Room {
    /// Room for `most` of `what`, and `of_one` of one connection.
    pub(super) fn new(what: &'static str, most: u32, of_one: u32) -> Arc<Self> {
        Arc::new(Self { what, most, of_one, open: Mutex::default() })
    }

    /// Takes a place for whoever asks.
    ///
    /// # Errors
    /// When there is none, with the time to wait.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Place, Refusal> {
        let caller = Caller::current();
        let mut open = self.open();
        if open.all >= self.most {
            return Err(self.refused("this coordinator serves", self.most));
        }
        let own = open.by_caller.entry(caller).or_default();
        if *own >= self.of_one {
            return Err(self.refused("this client has", self.of_one));
        }
        *own += 1;
        open.all += 1;
        drop(open);
        Ok(Place { room: Arc::clone(self), caller })
    }

    fn refused(&self, who: &str, most: u32) -> Refusal {
        let what = self.what;
        Refusal::busy(
            format!(
                "{who} {most} {what} at once, as many as there may be; ask again later, or read with the client library"
            ),
            RETRY_MS,
        )
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.room.open();
        open.all = open.all.saturating_sub(1);
        if let Some(own) = open.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                open.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use feedline_core::cluster::messages::RefusalKind;

    use super::*;

    async fn enter(room: &Arc<Room>, caller: Caller) -> Result<Place, Refusal> {
        caller.answers(async { room.enter() }).await
    }

    #[tokio::test]
    async fn one_client_leaves_room_for_others_and_all_have_an_end() {
        let room = Room::new("Flight streams", 3, 2);
        let (greedy, other) = (Caller::next(), Caller::next());
        let places = [enter(&room, greedy).await.unwrap(), enter(&room, greedy).await.unwrap()];
        let refusal = enter(&room, greedy).await.err().unwrap();
        assert_eq!((refusal.kind, refusal.retry_after_ms), (RefusalKind::Busy, Some(RETRY_MS)));
        assert!(refusal.message.starts_with("this client has 2 Flight streams at once"), "{refusal}");
        let third = enter(&room, other).await.unwrap();
        let refusal = enter(&room, other).await.err().unwrap();
        assert!(refusal.message.starts_with("this coordinator serves 3 Flight streams at once"), "{refusal}");
        drop((places, third));
        assert!(room.open().by_caller.is_empty() && room.open().all == 0);
    }
}
