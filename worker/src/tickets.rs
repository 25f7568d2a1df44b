//! Checks the tickets of consumers and of other workers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feedline_access::now_s;
use feedline_access::ticket::{Ticket, TicketKey};
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::services::{FetchOpen, GatherRequest};

/// Maximum number of consumers whose newest session is stored. At least the `MAX_SESSIONS / 2` most recent consumers
/// are stored.
const MAX_SESSIONS: usize = 1 << 16;
/// The error message if the worker requires tickets but the coordinator cannot issue tickets.
const NO_TICKETS: &str = "this worker has a token and requires tickets, but the coordinator has not sent a ticket key: start the coordinator \
     with --secret-file, or start this worker without a token";

/// Checks tickets with the coordinator's public key. Rejects tickets of superseded sessions.
#[derive(Debug)]
pub(crate) struct Tickets {
    /// Whether fetches are rejected until the coordinator has sent a key.
    is_required: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The public key. After the worker has received a key, every fetch needs a ticket.
    key: Option<TicketKey>,
    /// Whether the last plan had no key although tickets are required. The worker has then logged a warning.
    is_key_missing: bool,
    sessions: Sessions,
}

impl Tickets {
    /// If `is_required` is false, all fetches are accepted until a plan contains a key.
    pub(crate) fn new(is_required: bool) -> Self {
        Self { is_required, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ticket key from a plan. A plan without a key does not remove the current key.
    pub(crate) fn set_key(&self, key: Vec<u8>) {
        let mut state = self.lock();
        if !key.is_empty() {
            state.key = Some(TicketKey::from_bytes(key));
            state.is_key_missing = false;
            return;
        }
        let has_key = state.key.is_some();
        if !(self.is_required || has_key) || std::mem::replace(&mut state.is_key_missing, true) {
            return;
        }
        drop(state);
        if has_key {
            tracing::warn!(
                "the coordinator no longer sends a ticket key, so the worker keeps using the last key: start every coordinator with the cluster's --secret-file, or restart this worker"
            );
        } else {
            tracing::warn!("{NO_TICKETS}");
        }
    }

    /// Checks the ticket of a fetch. Returns the ticket, or `None` if no ticket is required.
    ///
    /// # Errors
    /// Returns an error if the fetch has no valid ticket for its job, or if the consumer has a newer session.
    pub(crate) fn check(&self, open: &FetchOpen) -> Result<Option<Ticket>, ServiceError> {
        self.check_of_job(open.job, &open.ticket)
    }

    /// Checks a ticket for a job, as [`Self::check`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Self::check`].
    pub(crate) fn check_of_job(&self, job: JobId, ticket: &str) -> Result<Option<Ticket>, ServiceError> {
        let Some(key) = self.key()? else { return Ok(None) };
        let ticket = key.check(Some(ticket), job, now_s()).map_err(denied)?;
        if self.lock().sessions.is_newest((ticket.job, ticket.consumer), ticket.session) {
            return Ok(Some(ticket));
        }
        let message = format!(
            "this session was superseded by a newer session of consumer {} of job {}",
            ticket.consumer, ticket.job
        );
        Err(ServiceError::new(ServiceErrorKind::Superseded, message))
    }

    /// Checks the ticket of a worker that requests rows of the features of a job.
    ///
    /// # Errors
    /// Returns an error if the request has no valid ticket for the job.
    pub(crate) fn check_gather(&self, request: &GatherRequest) -> Result<(), ServiceError> {
        let Some(key) = self.key()? else { return Ok(()) };
        key.check_gather(&request.ticket, request.job, now_s()).map(drop).map_err(denied)
    }

    /// Returns the key that verifies tickets. Returns `None` if no tickets are required.
    fn key(&self) -> Result<Option<TicketKey>, ServiceError> {
        let state = self.lock();
        match &state.key {
            Some(key) => Ok(Some(key.clone())),
            None if !self.is_required => Ok(None),
            // The coordinator cannot issue tickets, so a retry cannot succeed.
            None if state.is_key_missing => Err(ServiceError::new(ServiceErrorKind::Invalid, NO_TICKETS)),
            None => Err(ServiceError::new(
                ServiceErrorKind::Unavailable,
                "this worker has not received a ticket key from its coordinator yet; retry later",
            )),
        }
    }
}

fn denied(reason: String) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Denied, reason)
}

/// A job, and the number of one of its consumers.
type ConsumerKey = (JobId, u32);

/// The newest session of each consumer that has fetched recently.
#[derive(Debug, Default)]
struct Sessions {
    recent: HashMap<ConsumerKey, SessionId>,
    /// The previous `recent`. It is dropped when `recent` is full again.
    older: HashMap<ConsumerKey, SessionId>,
}

impl Sessions {
    /// Records a session. Returns whether it is the newest session of the consumer. Session ids increase with time.
    fn is_newest(&mut self, consumer: ConsumerKey, session: SessionId) -> bool {
        let known = self.recent.get(&consumer).or_else(|| self.older.get(&consumer)).copied();
        let newest = known.map_or(session, |known| known.max(session));
        if self.recent.len() >= MAX_SESSIONS / 2 && !self.recent.contains_key(&consumer) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(consumer, newest);
        newest == session
    }
}

#[cfg(test)]
mod tests {
    use feedline_access::Secret;
    use feedline_access::ticket::TicketIssuer;
    use feedline_data::layout::SplitRef;

    use super::*;

    fn open(job: u64, ticket: &str) -> FetchOpen {
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        FetchOpen {
            job: JobId(job),
            split,
            start_offset: 0,
            credit_bytes: 1,
            ticket: ticket.to_owned(),
            cached_features: Vec::new(),
        }
    }

    fn refusal(tickets: &Tickets, open: &FetchOpen) -> ServiceErrorKind {
        tickets.check(open).unwrap_err().kind
    }

    #[test]
    fn a_ticket_is_required_once_the_coordinator_has_sent_a_key() {
        let tickets = Tickets::new(false);
        assert_eq!(tickets.check(&open(1, "")), Ok(None));
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        tickets.set_key(issuer.public_key().as_bytes().to_vec());
        let ticket = issuer.issue(JobId(1), 0, SessionId(1), now_s());
        assert!(tickets.check(&open(1, &ticket)).is_ok_and(|ticket| ticket.is_some()));
        for refused in [open(1, ""), open(2, &ticket), open(1, "feedline-ticket-1.a.b")] {
            assert_eq!(refusal(&tickets, &refused), ServiceErrorKind::Denied);
        }
        let old = issuer.issue(JobId(1), 0, SessionId(1), now_s() - 3_600);
        assert_eq!(refusal(&tickets, &open(1, &old)), ServiceErrorKind::Denied);
        tickets.set_key(Vec::new());
        assert_eq!(
            refusal(&tickets, &open(1, "")),
            ServiceErrorKind::Denied,
            "an empty key does not remove the key"
        );
        assert!(tickets.check(&open(1, &ticket)).is_ok(), "the last key stays in use");
    }

    #[test]
    fn a_worker_with_a_token_rejects_fetches_until_it_has_a_ticket_key() {
        let tickets = Tickets::new(true);
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        let ticket = issuer.issue(JobId(1), 0, SessionId(1), now_s());
        // The error is retryable until a plan without a key has arrived.
        for kind in [ServiceErrorKind::Unavailable, ServiceErrorKind::Invalid] {
            for text in ["", &ticket] {
                assert_eq!(refusal(&tickets, &open(1, text)), kind);
            }
            tickets.set_key(Vec::new());
        }
        let message = tickets.check(&open(1, &ticket)).unwrap_err().message;
        assert!(
            message
                .contains("start the coordinator with --secret-file, or start this worker without a token"),
            "{message}"
        );
        tickets.set_key(issuer.public_key().as_bytes().to_vec());
        assert!(tickets.check(&open(1, &ticket)).is_ok());
        assert_eq!(refusal(&tickets, &open(1, "")), ServiceErrorKind::Denied);
    }

    #[test]
    fn during_a_rotation_a_worker_accepts_tickets_of_both_secrets() {
        let [old, new, other] = [(); 3].map(|()| Secret::new().unwrap());
        let both = Secret::parse(&format!("{}\n{}\n", new.text(), old.text())).unwrap();
        let tickets = Tickets::new(true);
        for in_file in [&old, &both] {
            tickets.set_key(TicketIssuer::new(in_file).public_key().as_bytes().to_vec());
        }
        let open_with =
            |secret: &Secret| open(1, &TicketIssuer::new(secret).issue(JobId(1), 0, SessionId(1), now_s()));
        assert!([&old, &new].into_iter().all(|secret| tickets.check(&open_with(secret)).is_ok()));
        assert_eq!(refusal(&tickets, &open_with(&other)), ServiceErrorKind::Denied);
        tickets.set_key(TicketIssuer::new(&new).public_key().as_bytes().to_vec());
        assert_eq!(refusal(&tickets, &open_with(&old)), ServiceErrorKind::Denied, "the rotation has ended");
    }

    #[test]
    fn a_ticket_is_valid_until_its_consumer_has_a_newer_session() {
        let tickets = Tickets::new(true);
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        tickets.set_key(issuer.public_key().as_bytes().to_vec());
        let open_as =
            |consumer, session| open(1, &issuer.issue(JobId(1), consumer, SessionId(session), now_s()));
        let (copied, newer, other) = (open_as(0, 7), open_as(0, 8), open_as(1, 3));
        assert!(tickets.check(&copied).is_ok() && tickets.check(&copied).is_ok());
        assert!(tickets.check(&newer).is_ok());
        assert_eq!(refusal(&tickets, &copied), ServiceErrorKind::Superseded);
        assert!(tickets.check(&other).is_ok(), "sessions of consumers are independent");
        assert!(tickets.check(&newer).is_ok());
    }

    #[test]
    fn recent_sessions_are_stored_up_to_a_limit() {
        let mut sessions = Sessions::default();
        let consumer = (JobId(1), 0);
        assert!(sessions.is_newest(consumer, SessionId(9)));
        for number in 0..3 * MAX_SESSIONS as u32 {
            assert!(sessions.is_newest((JobId(2), number), SessionId(1)));
            if number % 1_000 == 0 {
                assert!(
                    !sessions.is_newest(consumer, SessionId(8)),
                    "a superseded session does not replace the newest one"
                );
            }
            assert!(sessions.recent.len() + sessions.older.len() <= MAX_SESSIONS);
        }
        assert!(sessions.is_newest(consumer, SessionId(9)));
    }
}
