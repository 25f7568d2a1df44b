//! How many Flight clients are served at once: in all, and of one connection, so that one that opens very many leaves room
//! for others.

use std::sync::Arc;

use feedline_access::room::{self, Full};
use feedline_core::cluster::messages::Refusal;
use feedline_proto::Caller;

/// Time after which asking again may help.
pub(super) const RETRY_MS: u64 = 1_000;

/// Room for one kind of request.
pub(super) struct Room {
    /// What there is room for.
    what: &'static str,
    places: Arc<room::Room<Option<Caller>>>,
}

/// A place, until it is dropped.
pub(super) type Place = room::Place<Option<Caller>>;

impl Room {
    /// Room for `most` of `what`, and `of_one` of one connection.
    pub(super) fn new(what: &'static str, most: u32, of_one: u32) -> Self {
        Self { what, places: room::Room::new(most, of_one, |_| {}) }
    }

    /// Takes a place for whoever asks.
    ///
    /// # Errors
    /// When there is none, with the time to wait.
    pub(super) fn enter(&self) -> Result<Place, Refusal> {
        self.places.enter(Caller::current()).map_err(|full| self.refused(full))
    }

    fn refused(&self, full: Full) -> Refusal {
        let (who, most) = match full {
            Full::OfAll(most) => ("this coordinator serves", most),
            Full::OfOne(most) => ("this client has", most),
        };
        let what = self.what;
        Refusal::busy(
            format!(
                "{who} {most} {what} at once, as many as there may be; ask again later, or read with the client library"
            ),
            RETRY_MS,
        )
    }
}

#[cfg(test)]
mod tests {
    use feedline_core::cluster::messages::RefusalKind;

    use super::*;

    async fn enter(room: &Room, caller: Caller) -> Result<Place, Refusal> {
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
        assert!(enter(&room, greedy).await.is_ok(), "who leaves makes room");
    }
}
