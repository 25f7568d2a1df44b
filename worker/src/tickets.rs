//! Whether a consumer may have the rows that it asks for.

use std::sync::{Mutex, PoisonError};

use feedline_access::now_s;
use feedline_access::ticket::TicketKey;
use feedline_core::cluster::messages::{Refusal, RefusalKind};
use feedline_proto::services::FetchOpen;

/// What tickets are checked with, as the coordinator says.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<Option<TicketKey>>);

impl Tickets {
    /// Takes what a plan says; nothing where consumers need no tickets.
    pub(crate) fn set(&self, key: Vec<u8>) {
        let key = (!key.is_empty()).then(|| TicketKey::from_bytes(key));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Refuses a fetch without a ticket for its job.
    pub(crate) fn check(&self, open: &FetchOpen) -> Result<(), Refusal> {
        let key = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(key) = key else { return Ok(()) };
        key.check(Some(&open.ticket), open.job, now_s())
            .map_err(|reason| Refusal::new(RefusalKind::Denied, reason))
    }
}

#[cfg(test)]
mod tests {
    use feedline_access::Secret;
    use feedline_access::ticket::TicketOffice;
    use feedline_core::ids::{JobId, SessionId};
    use feedline_core::layout::SplitRef;

    use super::*;

    fn open(job: u64, ticket: &str) -> FetchOpen {
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        FetchOpen { job: JobId(job), split, from: 0, credit_bytes: 1, ticket: ticket.to_owned() }
    }

    #[test]
    fn rows_are_given_with_a_ticket_once_the_coordinator_asks_for_it() {
        let tickets = Tickets::default();
        assert_eq!(tickets.check(&open(1, "")), Ok(()));
        let office = TicketOffice::new(&Secret::new().unwrap());
        tickets.set(office.public_key().as_bytes().to_vec());
        let ticket = office.make(JobId(1), SessionId(1), now_s());
        assert_eq!(tickets.check(&open(1, &ticket)), Ok(()));
        for refused in [open(1, ""), open(2, &ticket), open(1, "feedline-ticket-1.a.b")] {
            assert_eq!(tickets.check(&refused).unwrap_err().kind, RefusalKind::Denied);
        }
        let old = office.make(JobId(1), SessionId(1), now_s() - 3_600);
        assert_eq!(tickets.check(&open(1, &old)).unwrap_err().kind, RefusalKind::Denied);
        tickets.set(Vec::new());
        assert_eq!(tickets.check(&open(1, "")), Ok(()));
    }
}
