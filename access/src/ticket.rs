//! Tickets: a coordinator lets one session of a consumer fetch its job's rows at any worker, for some minutes.

use std::fmt;

use feedline_data::ids::{JobId, SessionId};
use ring::signature::Ed25519KeyPair;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::sealed::{seal, unseal};

/// How tickets begin.
const PREFIX: &str = "feedline-ticket-1";
/// What their keys are derived with.
const USAGE: &str = "tickets";
/// Bytes of an Ed25519 public key.
const KEY_BYTES: usize = 32;
/// Time for which a ticket is good: consumers without a coordinator go on with what workers hold for less.
pub const GOOD_FOR_S: u64 = 600;
/// A ticket is taken for so long after its end, since clocks of hosts differ.
const CLOCKS_DIFFER_S: u64 = 60;

/// What a ticket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The job whose rows may be fetched.
    pub job: JobId,
    /// Which consumer of the job may fetch them.
    pub consumer: u32,
    /// The consumer's session: a ticket is good until workers see one of a newer session.
    pub session: SessionId,
    /// Seconds since 1970, UTC, from which on it is no longer good.
    #[serde(rename = "exp")]
    pub expires_s: u64,
}

/// Makes tickets.
pub struct TicketOffice {
    keys: Ed25519KeyPair,
    public: TicketKey,
}

impl fmt::Debug for TicketOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketOffice")
    }
}

impl TicketOffice {
    /// The tickets of the cluster with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self { keys: secret.keys(USAGE), public: TicketKey(secret.public_keys(USAGE).concat()) }
    }

    /// A ticket for a session of a job's consumer, good for [`GOOD_FOR_S`] from `now_s` on, seconds since 1970.
    pub fn make(&self, job: JobId, consumer: u32, session: SessionId, now_s: u64) -> String {
        seal(PREFIX, &Ticket { job, consumer, session, expires_s: now_s + GOOD_FOR_S }, &self.keys)
    }

    /// What workers check tickets with.
    pub fn public_key(&self) -> TicketKey {
        self.public.clone()
    }
}

/// What workers check tickets with, a key after the other where a secret is exchanged; it makes none.
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

    /// Checks that a ticket lets its holder fetch rows of `job` at `now_s`, seconds since 1970, and tells what it says.
    /// Whether its session is the consumer's newest is for whoever remembers sessions to check.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, ticket: Option<&str>, job: JobId, now_s: u64) -> Result<Ticket, String> {
        let Some(text) = ticket.filter(|text| !text.is_empty()) else {
            return Err("rows are given to consumers with a ticket of their job only, which the coordinator gives them".to_owned());
        };
        let mut keys = self.0.chunks(KEY_BYTES);
        let signed: Option<Ticket> = keys.find_map(|key| unseal(PREFIX, text, key));
        let ticket = signed.ok_or("the ticket is none of this cluster's")?;
        if ticket.job != job {
            return Err("the ticket is for another job".to_owned());
        }
        if ticket.expires_s + CLOCKS_DIFFER_S <= now_s {
            let ago = now_s - ticket.expires_s;
            return Err(format!(
                "the ticket expired {ago} s ago; the coordinator gives a new one with each answer, so see whether the clocks of the hosts agree"
            ));
        }
        Ok(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);

    #[test]
    fn a_ticket_is_good_for_its_job_and_its_time() {
        let office = TicketOffice::new(&Secret::new().unwrap());
        let ticket = office.make(JOB, 5, SessionId(3), 1_000);
        let key = office.public_key();
        let says = Ticket { job: JOB, consumer: 5, session: SessionId(3), expires_s: 1_000 + GOOD_FOR_S };
        assert_eq!(key.check(Some(&ticket), JOB, 1_000), Ok(says));
        assert_eq!(key.check(Some(&ticket), JOB, 1_000 + GOOD_FOR_S + CLOCKS_DIFFER_S - 1), Ok(says));
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
    fn while_a_secret_is_exchanged_tickets_of_both_are_good() {
        let [old, new] = [0, 1].map(|_| Secret::new().unwrap());
        let both = Secret::parse(&format!("{}\n{}", new.text(), old.text())).unwrap();
        let key = TicketOffice::new(&both).public_key();
        for (secret, is_good) in [(&old, true), (&new, true), (&Secret::new().unwrap(), false)] {
            let ticket = TicketOffice::new(secret).make(JOB, 5, SessionId(3), 0);
            assert_eq!(key.check(Some(&ticket), JOB, 0).is_ok(), is_good);
        }
        let signed = TicketOffice::new(&both).make(JOB, 5, SessionId(3), 0);
        assert!(TicketOffice::new(&new).public_key().check(Some(&signed), JOB, 0).is_ok(), "the first signs");
    }

    #[test]
    fn what_others_signed_is_no_ticket() {
        let secret = Secret::new().unwrap();
        let office = TicketOffice::new(&secret);
        let other = TicketOffice::new(&Secret::new().unwrap()).make(JOB, 5, SessionId(3), 0);
        let token = seal(
            "feedline-token-1",
            &Ticket { job: JOB, consumer: 5, session: SessionId(3), expires_s: 99 },
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
        let ticket = office.make(JOB, 5, SessionId(3), 0);
        assert!(TicketKey::from_bytes(vec![1]).check(Some(&ticket), JOB, 0).is_err());
    }
}
