//! A cache of issued tickets. A consumer reports several times a second, but a ticket is valid for minutes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use feedline_data::ids::{JobId, SessionId};

/// Time for which a holder receives the same ticket, in seconds.
const TICKET_REUSE_S: u64 = 60;
/// Maximum number of cached tickets. Other holders receive new tickets.
const MAX_CACHED_TICKETS: usize = 4096;

/// One session of a consumer.
pub(super) type TicketHolder = (JobId, u32, SessionId);

/// Tickets by their holder, with their issue times as Unix timestamps in seconds.
pub(super) struct TicketCache<H>(Mutex<HashMap<H, (u64, String)>>);

impl<H> Default for TicketCache<H> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<H: Eq + Hash> TicketCache<H> {
    /// Returns the cached ticket of a holder, or issues a new ticket with `issue`.
    pub(super) fn ticket(&self, holder: H, now_s: u64, issue: impl FnOnce() -> String) -> String {
        let is_new = |issued_s: u64| now_s.checked_sub(issued_s).is_some_and(|age_s| age_s < TICKET_REUSE_S);
        let issued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ticket)) = issued.get(&holder).filter(|(issued_s, _)| is_new(*issued_s)) {
            return ticket.clone();
        }
        drop(issued);
        let ticket = issue();
        let mut issued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if issued.len() >= MAX_CACHED_TICKETS {
            issued.retain(|_, (issued_s, _)| is_new(*issued_s));
        }
        if issued.len() >= MAX_CACHED_TICKETS {
            issued.clear();
        }
        issued.insert(holder, (now_s, ticket.clone()));
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_same_ticket_for_a_minute() {
        let issued = TicketCache::default();
        let holder = (JobId(1), 0, SessionId(7));
        let ask =
            |holder: TicketHolder, now_s: u64| issued.ticket(holder, now_s, || format!("issued at {now_s}"));
        assert_eq!(ask(holder, 100), "issued at 100");
        assert_eq!(ask(holder, 159), "issued at 100");
        assert_eq!(ask((JobId(1), 0, SessionId(8)), 159), "issued at 159", "another session");
        assert_eq!(ask((JobId(2), 0, SessionId(7)), 159), "issued at 159", "another job");
        assert_eq!(ask(holder, 160), "issued at 160");
        assert_eq!(ask(holder, 90), "issued at 90", "the clock was set back");
    }

    #[test]
    fn the_cache_is_bounded() {
        let issued = TicketCache::default();
        for session in 0..3 * MAX_CACHED_TICKETS as u64 {
            issued.ticket((JobId(1), 0, SessionId(session)), 100, String::new);
        }
        assert!(issued.0.lock().unwrap().len() <= MAX_CACHED_TICKETS);
    }
}
