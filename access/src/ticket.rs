//! Tickets: a coordinator lets a consumer of a job fetch that job's rows at any worker, for some minutes.

use std::fmt;

use feedline_core::ids::{JobId, SessionId};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::sealed::{seal, unseal};

/// How tickets begin.
const PREFIX: &str = "feedline-ticket-1";
/// What their keys are derived with.
const USAGE: &str = "tickets";
/// Time for which a ticket is good: consumers without a coordinator go on with what workers hold for less.
pub const GOOD_FOR_S: u64 = 600;
/// A ticket is taken for so long after its end, since clocks of hosts differ.
const CLOCKS_DIFFER_S: u64 = 60;

/// What a ticket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The job whose rows may be fetched.
    pub job: JobId,
    /// The consumer's session, for logs.
    pub session: SessionId,
    /// Seconds since 1970, UTC, from which on it is no longer good.
    #[serde(rename = "exp")]
    pub expires_s: u64,
}

/// Makes tickets.
pub struct TicketOffice {
    keys: Ed25519KeyPair,
}

impl fmt::Debug for TicketOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketOffice")
    }
}

impl TicketOffice {
    /// The tickets of the cluster with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: secret.keys(USAGE) }
    }

    /// A ticket for the rows of a job, good for [`GOOD_FOR_S`] from `now_s` on, seconds since 1970.
    pub fn make(&self, job: JobId, session: SessionId, now_s: u64) -> String {
        seal(PREFIX, &Ticket { job, session, expires_s: now_s + GOOD_FOR_S }, &self.keys)
    }

    /// What workers check tickets with.
    pub fn public_key(&self) -> TicketKey {
        TicketKey(self.keys.public_key().as_ref().to_vec())
    }
}

/// What workers check tickets with; it makes none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketKey(Vec<u8>);

impl TicketKey {
    /// Of its bytes; with wrong ones no ticket is good.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Checks that a ticket lets its holder fetch rows of `job` at `now_s`, seconds since 1970.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, ticket: Option<&str>, job: JobId, now_s: u64) -> Result<(), String> {
        let Some(text) = ticket.filter(|text| !text.is_empty()) else {
            return Err("rows are given to consumers with a ticket of their job only, which the coordinator gives them".to_owned());
        };
        let ticket: Ticket = unseal(PREFIX, text, &self.0).ok_or("the ticket is none of this cluster's")?;
        if ticket.job != job {
            return Err("the ticket is for another job".to_owned());
        }
        if ticket.expires_s + CLOCKS_DIFFER_S <= now_s {
            let ago = now_s - ticket.expires_s;
            return Err(format!(
                "the ticket expired {ago} s ago; the coordinator gives a new one with each answer, so see whether the clocks of the hosts agree"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);

    #[test]
    fn a_ticket_is_good_for_its_job_and_its_time() {
        let office = TicketOffice::new(&Secret::new().unwrap());
        let ticket = office.make(JOB, SessionId(3), 1_000);
        let key = office.public_key();
        assert_eq!(key.check(Some(&ticket), JOB, 1_000), Ok(()));
        assert_eq!(key.check(Some(&ticket), JOB, 1_000 + GOOD_FOR_S + CLOCKS_DIFFER_S - 1), Ok(()));
        assert!(
            key.check(Some(&ticket), JOB, 1_000 + GOOD_FOR_S + CLOCKS_DIFFER_S)
                .unwrap_err()
                .contains("expired 60 s ago")
        );
        assert!(key.check(Some(&ticket), JobId(8), 1_000).unwrap_err().contains("another job"));
        for none in [None, Some("")] {
            assert!(key.check(none, JOB, 1_000).unwrap_err().contains("with a ticket of their job only"));
        }
    }

    #[test]
    fn what_others_signed_is_no_ticket() {
        let secret = Secret::new().unwrap();
        let office = TicketOffice::new(&secret);
        let other = TicketOffice::new(&Secret::new().unwrap()).make(JOB, SessionId(3), 0);
        let token = seal(
            "feedline-token-1",
            &Ticket { job: JOB, session: SessionId(3), expires_s: 99 },
            &secret.keys("tokens"),
        );
        for wrong in [other, token, "x.y.z".to_owned()] {
            assert!(
                office
                    .public_key()
                    .check(Some(&wrong), JOB, 0)
                    .unwrap_err()
                    .contains("none of this cluster's")
            );
        }
        let ticket = office.make(JOB, SessionId(3), 0);
        assert!(TicketKey::from_bytes(vec![1]).check(Some(&ticket), JOB, 0).is_err());
    }
}
