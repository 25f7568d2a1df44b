//! Whether a consumer may have the rows that it asks for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feedline_access::now_s;
use feedline_access::ticket::{Ticket, TicketKey};
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::services::FetchOpen;

/// Consumers whose newest session is remembered: at least half as many of those that fetched last.
const REMEMBERED: usize = 1 << 16;
/// What is wrong where tickets are asked for and the coordinator has nothing to make them with, and what helps.
const NO_TICKETS: &str = "this worker shows a token, and the coordinator does not say what tickets are checked with, so that no consumer is \
     given rows: give the coordinator its --secret-file, or start this worker without a token";

/// What tickets are checked with, as the coordinator says, and which of them newer ones have replaced.
#[derive(Debug)]
pub(crate) struct Tickets {
    /// No row is given before the coordinator has said what tickets are checked with.
    is_required: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Once there was one, there is always one.
    key: Option<TicketKey>,
    /// The latest plan has none though tickets are asked for, and that was said.
    is_missed: bool,
    sessions: Sessions,
}

impl Tickets {
    /// Where they are not required, rows are given to everybody for as long as no plan has a key.
    pub(crate) fn new(is_required: bool) -> Self {
        Self { is_required, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a plan says. A plan without a key never lets in whom one with a key would not.
    pub(crate) fn set(&self, key: Vec<u8>) {
        let mut state = self.lock();
        if !key.is_empty() {
            state.key = Some(TicketKey::from_bytes(key));
            state.is_missed = false;
            return;
        }
        let has_key = state.key.is_some();
        if !(self.is_required || has_key) || std::mem::replace(&mut state.is_missed, true) {
            return;
        }
        drop(state);
        if has_key {
            tracing::warn!(
                "the coordinator no longer says what tickets are checked with; they are checked as before: give every \
                 coordinator the cluster's --secret-file, or restart this worker"
            );
        } else {
            tracing::warn!("{NO_TICKETS}");
        }
    }

    /// Refuses a fetch without a ticket for its job, or with one that a newer session of its consumer has replaced. What
    /// the ticket says; nothing where none is asked for.
    pub(crate) fn check(&self, open: &FetchOpen) -> Result<Option<Ticket>, ServiceError> {
        let state = self.lock();
        let (key, is_missed) = (state.key.clone(), state.is_missed);
        drop(state);
        let key = match key {
            Some(key) => key,
            None if !self.is_required => return Ok(None),
            // No ticket can come: whoever waits for rows is told why there are none.
            None if is_missed => return Err(ServiceError::new(ServiceErrorKind::Invalid, NO_TICKETS)),
            None => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Unavailable,
                    "this worker has not heard from its coordinator yet what tickets are checked with; try again",
                ));
            }
        };
        let ticket = key
            .check(Some(&open.ticket), open.job, now_s())
            .map_err(|reason| ServiceError::new(ServiceErrorKind::Denied, reason))?;
        if self.lock().sessions.is_newest((ticket.job, ticket.consumer), ticket.session) {
            return Ok(Some(ticket));
        }
        let message = format!(
            "consumer {} of job {} has a newer session, so that tickets of this one are good no more",
            ticket.consumer, ticket.job
        );
        Err(ServiceError::new(ServiceErrorKind::Superseded, message))
    }
}

/// A consumer of a job.
type Seat = (JobId, u32);

/// The newest session of each consumer that fetched here, as long as it is not long ago.
#[derive(Debug, Default)]
struct Sessions {
    recent: HashMap<Seat, SessionId>,
    /// Those that were recent before; they are forgotten when the recent ones are as many as may be.
    older: HashMap<Seat, SessionId>,
}

impl Sessions {
    /// Whether no newer session of the consumer is known. Sessions grow with time.
    fn is_newest(&mut self, seat: Seat, session: SessionId) -> bool {
        let known = self.recent.get(&seat).or_else(|| self.older.get(&seat)).copied();
        let newest = known.map_or(session, |known| known.max(session));
        if self.recent.len() >= REMEMBERED / 2 && !self.recent.contains_key(&seat) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(seat, newest);
        newest == session
    }
}

#[cfg(test)]
mod tests {
    use feedline_access::Secret;
    use feedline_access::ticket::TicketOffice;
    use feedline_data::layout::SplitRef;

    use super::*;

    fn open(job: u64, ticket: &str) -> FetchOpen {
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        FetchOpen { job: JobId(job), split, from: 0, credit_bytes: 1, ticket: ticket.to_owned() }
    }

    fn refusal(tickets: &Tickets, open: &FetchOpen) -> ServiceErrorKind {
        tickets.check(open).unwrap_err().kind
    }

    #[test]
    fn rows_are_given_with_a_ticket_once_the_coordinator_asks_for_it() {
        let tickets = Tickets::new(false);
        assert_eq!(tickets.check(&open(1, "")), Ok(None));
        let office = TicketOffice::new(&Secret::new().unwrap());
        tickets.set(office.public_key().as_bytes().to_vec());
        let ticket = office.make(JobId(1), 0, SessionId(1), now_s());
        assert!(tickets.check(&open(1, &ticket)).is_ok_and(|ticket| ticket.is_some()));
        for refused in [open(1, ""), open(2, &ticket), open(1, "feedline-ticket-1.a.b")] {
            assert_eq!(refusal(&tickets, &refused), ServiceErrorKind::Denied);
        }
        let old = office.make(JobId(1), 0, SessionId(1), now_s() - 3_600);
        assert_eq!(refusal(&tickets, &open(1, &old)), ServiceErrorKind::Denied);
        tickets.set(Vec::new());
        assert_eq!(refusal(&tickets, &open(1, "")), ServiceErrorKind::Denied, "there is no way back");
        assert!(tickets.check(&open(1, &ticket)).is_ok(), "the key is the one that it was");
    }

    #[test]
    fn a_worker_with_a_token_gives_nothing_before_it_knows_what_tickets_are_checked_with() {
        let tickets = Tickets::new(true);
        let office = TicketOffice::new(&Secret::new().unwrap());
        let ticket = office.make(JobId(1), 0, SessionId(1), now_s());
        // Who asks is to ask again, and after a plan without a key is told that this does not help.
        for kind in [ServiceErrorKind::Unavailable, ServiceErrorKind::Invalid] {
            for text in ["", &ticket] {
                assert_eq!(refusal(&tickets, &open(1, text)), kind);
            }
            tickets.set(Vec::new());
        }
        let said = tickets.check(&open(1, &ticket)).unwrap_err().message;
        assert!(
            said.contains("give the coordinator its --secret-file, or start this worker without a token"),
            "{said}"
        );
        tickets.set(office.public_key().as_bytes().to_vec());
        assert!(tickets.check(&open(1, &ticket)).is_ok());
        assert_eq!(refusal(&tickets, &open(1, "")), ServiceErrorKind::Denied);
    }

    #[test]
    fn a_ticket_is_good_until_its_consumer_has_a_newer_session() {
        let tickets = Tickets::new(true);
        let office = TicketOffice::new(&Secret::new().unwrap());
        tickets.set(office.public_key().as_bytes().to_vec());
        let of = |consumer, session| open(1, &office.make(JobId(1), consumer, SessionId(session), now_s()));
        let (copied, newer, other) = (of(0, 7), of(0, 8), of(1, 3));
        assert!(tickets.check(&copied).is_ok() && tickets.check(&copied).is_ok());
        assert!(tickets.check(&newer).is_ok());
        assert_eq!(refusal(&tickets, &copied), ServiceErrorKind::Superseded);
        assert!(tickets.check(&other).is_ok(), "another consumer has sessions of its own");
        assert!(tickets.check(&newer).is_ok());
    }

    #[test]
    fn sessions_of_those_that_fetch_are_remembered_and_their_number_has_an_end() {
        let mut sessions = Sessions::default();
        let seat = (JobId(1), 0);
        assert!(sessions.is_newest(seat, SessionId(9)));
        for consumer in 0..3 * REMEMBERED as u32 {
            assert!(sessions.is_newest((JobId(2), consumer), SessionId(1)));
            if consumer % 1_000 == 0 {
                assert!(!sessions.is_newest(seat, SessionId(8)), "a refused one is no reason to forget");
            }
            assert!(sessions.recent.len() + sessions.older.len() <= REMEMBERED);
        }
        assert!(sessions.is_newest(seat, SessionId(9)));
    }
}
