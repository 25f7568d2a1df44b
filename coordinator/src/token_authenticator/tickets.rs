//! Tickets that were given of late: a consumer asks several times a second, and a ticket is good for minutes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use feedline_data::ids::{JobId, SessionId};

/// Time for which a consumer is given the same ticket again.
const AGAIN_FOR_S: u64 = 60;
/// Consumers whose tickets are kept; for more they are made anew.
const KEPT: usize = 4096;

/// A session of a job's consumer.
pub(super) type TicketHolder = (JobId, u32, SessionId);

/// The tickets, with when each was made, in seconds since 1970.
#[derive(Default)]
pub(super) struct IssuedTickets(Mutex<HashMap<TicketHolder, (u64, String)>>);

impl IssuedTickets {
    /// The holder's ticket; `make` makes one where there is none, or it is not that new any more.
    pub(super) fn ticket(&self, holder: TicketHolder, now_s: u64, make: impl FnOnce() -> String) -> String {
        let is_new = |made_s: u64| now_s.checked_sub(made_s).is_some_and(|age_s| age_s < AGAIN_FOR_S);
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ticket)) = given.get(&holder).filter(|(made_s, _)| is_new(*made_s)) {
            return ticket.clone();
        }
        drop(given);
        let ticket = make();
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if given.len() >= KEPT {
            given.retain(|_, (made_s, _)| is_new(*made_s));
        }
        if given.len() >= KEPT {
            given.clear();
        }
        given.insert(holder, (now_s, ticket.clone()));
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_same_ticket_for_a_minute() {
        let given = IssuedTickets::default();
        let holder = (JobId(1), 0, SessionId(7));
        let ask =
            |holder: TicketHolder, now_s: u64| given.ticket(holder, now_s, || format!("made at {now_s}"));
        assert_eq!(ask(holder, 100), "made at 100");
        assert_eq!(ask(holder, 159), "made at 100");
        assert_eq!(ask((JobId(1), 0, SessionId(8)), 159), "made at 159", "another session");
        assert_eq!(ask((JobId(2), 0, SessionId(7)), 159), "made at 159", "another job");
        assert_eq!(ask(holder, 160), "made at 160");
        assert_eq!(ask(holder, 90), "made at 90", "the clock was set back");
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let given = IssuedTickets::default();
        for session in 0..3 * KEPT as u64 {
            given.ticket((JobId(1), 0, SessionId(session)), 100, String::new);
        }
        assert!(given.0.lock().unwrap().len() <= KEPT);
    }
}
