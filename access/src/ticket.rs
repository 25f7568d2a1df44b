//! Tickets: short-lived credentials that allow one session of a consumer to fetch the rows of its job from any worker, and the workers
//! of a job to gather rows of its features from each other.

use std::fmt;

use feedline_data::ids::{JobId, SessionId};
use ring::signature::Ed25519KeyPair;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::sealed::{seal, unseal};

/// Prefix of tickets.
const TICKET_PREFIX: &str = "feedline-ticket-1";
/// Prefix of tickets of workers.
const GATHER_TICKET_PREFIX: &str = "feedline-gather-1";
/// Usage label for the derivation of the ticket keys.
const TICKET_KEY_USAGE: &str = "tickets";
/// Length of an Ed25519 public key.
const KEY_BYTES: usize = 32;
/// Lifetime of a ticket. It exceeds the time for which a consumer can continue without a coordinator.
pub const TICKET_LIFETIME_S: u64 = 600;
/// A ticket is accepted for this long after its expiry, because the clocks of hosts differ.
const CLOCK_TOLERANCE_S: u64 = 60;

/// The content of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The job of the rows.
    pub job: JobId,
    /// The consumer that may fetch the rows.
    pub consumer: u32,
    /// The session of the consumer. Workers reject a ticket after they have received a ticket of a newer session.
    pub session: SessionId,
    /// Expiry time as a Unix timestamp in seconds.
    #[serde(rename = "exp")]
    pub expires_s: u64,
}

/// The content of a ticket that allows a worker to gather rows of the features of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherTicket {
    /// The job whose batches contain the features.
    pub job: JobId,
    /// Expiry time as a Unix timestamp in seconds.
    #[serde(rename = "exp")]
    pub expires_s: u64,
}

/// Issues tickets.
pub struct TicketIssuer {
    keys: Ed25519KeyPair,
    public: TicketKey,
}

impl fmt::Debug for TicketIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketIssuer")
    }
}

impl TicketIssuer {
    /// Creates the issuer of a cluster with this secret.
    pub fn new(secret: &Secret) -> Self {
        Self {
            keys: secret.signing_keys(TICKET_KEY_USAGE),
            public: TicketKey(secret.public_keys(TICKET_KEY_USAGE).concat()),
        }
    }

    /// Issues a ticket for a session of a consumer. The ticket expires [`TICKET_LIFETIME_S`] seconds after `now_s`, a Unix
    /// timestamp in seconds.
    pub fn issue(&self, job: JobId, consumer: u32, session: SessionId, now_s: u64) -> String {
        seal(
            TICKET_PREFIX,
            &Ticket { job, consumer, session, expires_s: now_s + TICKET_LIFETIME_S },
            &self.keys,
        )
    }

    /// Issues a ticket for the workers of a job. It expires as the tickets of consumers do.
    pub fn issue_gather(&self, job: JobId, now_s: u64) -> String {
        let ticket = GatherTicket { job, expires_s: now_s + TICKET_LIFETIME_S };
        seal(GATHER_TICKET_PREFIX, &ticket, &self.keys)
    }

    /// Returns the key with which workers verify tickets.
    pub fn public_key(&self) -> TicketKey {
        self.public.clone()
    }
}

/// The key with which workers verify tickets. During a rotation of the secret, contains the keys of all accepted secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketKey(Vec<u8>);

impl TicketKey {
    /// Creates a key from bytes. With invalid bytes, no ticket is valid.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Checks that a ticket allows fetching rows of `job` at `now_s`, a Unix timestamp in seconds, and returns the content
    /// of the ticket. The caller checks that the session is the newest session of the consumer.
    ///
    /// # Errors
    /// Returns a message if the ticket is missing, invalid, expired or for another job.
    pub fn check(&self, ticket: Option<&str>, job: JobId, now_s: u64) -> Result<Ticket, String> {
        let Some(text) = ticket.filter(|text| !text.is_empty()) else {
            return Err("the fetch has no ticket; use the ticket from the consumer's plan".to_owned());
        };
        let ticket: Ticket = self
            .unseal(TICKET_PREFIX, text)
            .ok_or("the ticket is not valid in this cluster; use the ticket from the consumer's plan")?;
        check_job(ticket.job, job)?;
        check_expiry(ticket.expires_s, now_s)?;
        Ok(ticket)
    }

    /// Checks that a ticket allows gathering rows of the features of `job` at `now_s`, a Unix timestamp in seconds.
    ///
    /// # Errors
    /// Returns a message if the ticket is missing, invalid, expired, for another job, or the ticket of a consumer.
    pub fn check_gather(&self, ticket: &str, job: JobId, now_s: u64) -> Result<GatherTicket, String> {
        if ticket.is_empty() {
            return Err(
                "the request for rows has no ticket; use the ticket from the worker's plan".to_owned()
            );
        }
        let ticket: GatherTicket = self.unseal(GATHER_TICKET_PREFIX, ticket).ok_or(
            "the ticket does not allow workers of this cluster to gather rows; use the ticket from the worker's plan",
        )?;
        check_job(ticket.job, job)?;
        check_expiry(ticket.expires_s, now_s)?;
        Ok(ticket)
    }

    fn unseal<T: DeserializeOwned>(&self, prefix: &str, text: &str) -> Option<T> {
        self.0.chunks(KEY_BYTES).find_map(|key| unseal(prefix, text, key))
    }
}

fn check_job(of_ticket: JobId, requested: JobId) -> Result<(), String> {
    if of_ticket == requested {
        return Ok(());
    }
    Err("the ticket is for another job; use the ticket of this job".to_owned())
}

fn check_expiry(expires_s: u64, now_s: u64) -> Result<(), String> {
    if expires_s.saturating_add(CLOCK_TOLERANCE_S) > now_s {
        return Ok(());
    }
    let ago = now_s - expires_s;
    Err(format!(
        "the ticket expired {ago} s ago, although the coordinator continually issues new tickets; check the clocks of the hosts"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);

    #[test]
    fn a_ticket_is_valid_for_its_job_until_it_expires() {
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        let ticket = issuer.issue(JOB, 5, SessionId(3), 1_000);
        let key = issuer.public_key();
        let content =
            Ticket { job: JOB, consumer: 5, session: SessionId(3), expires_s: 1_000 + TICKET_LIFETIME_S };
        assert_eq!(key.check(Some(&ticket), JOB, 1_000), Ok(content));
        assert_eq!(
            key.check(Some(&ticket), JOB, 1_000 + TICKET_LIFETIME_S + CLOCK_TOLERANCE_S - 1),
            Ok(content)
        );
        assert!(
            key.check(Some(&ticket), JOB, 1_000 + TICKET_LIFETIME_S + CLOCK_TOLERANCE_S)
                .unwrap_err()
                .contains("expired 60 s ago")
        );
        assert!(key.check(Some(&ticket), JobId(8), 1_000).unwrap_err().contains("another job"));
        for missing in [None, Some("")] {
            assert!(key.check(missing, JOB, 1_000).unwrap_err().contains("has no ticket"));
        }
    }

    #[test]
    fn tickets_of_workers_and_of_consumers_do_not_replace_each_other() {
        let issuer = TicketIssuer::new(&Secret::new().unwrap());
        let key = issuer.public_key();
        let (gather, fetch) = (issuer.issue_gather(JOB, 1_000), issuer.issue(JOB, 5, SessionId(3), 1_000));
        let content = GatherTicket { job: JOB, expires_s: 1_000 + TICKET_LIFETIME_S };
        assert_eq!(key.check_gather(&gather, JOB, 1_000), Ok(content));
        assert!(key.check(Some(&gather), JOB, 1_000).unwrap_err().contains("not valid in this cluster"));
        let other = TicketIssuer::new(&Secret::new().unwrap()).issue_gather(JOB, 1_000);
        for (ticket, job, now_s, why) in [
            ("", JOB, 1_000, "has no ticket"),
            (&fetch, JOB, 1_000, "does not allow workers of this cluster to gather rows"),
            (&other, JOB, 1_000, "does not allow workers of this cluster to gather rows"),
            (&gather, JobId(8), 1_000, "for another job"),
            (&gather, JOB, 1_000 + TICKET_LIFETIME_S + CLOCK_TOLERANCE_S, "expired 60 s ago"),
        ] {
            let error = key.check_gather(ticket, job, now_s).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn during_a_rotation_tickets_of_both_secrets_are_valid() {
        let [old, new] = [0, 1].map(|_| Secret::new().unwrap());
        let both = Secret::parse(&format!("{}\n{}", new.text(), old.text())).unwrap();
        let key = TicketIssuer::new(&both).public_key();
        for (secret, is_valid) in [(&old, true), (&new, true), (&Secret::new().unwrap(), false)] {
            let ticket = TicketIssuer::new(secret).issue(JOB, 5, SessionId(3), 0);
            assert_eq!(key.check(Some(&ticket), JOB, 0).is_ok(), is_valid);
        }
        let signed = TicketIssuer::new(&both).issue(JOB, 5, SessionId(3), 0);
        assert!(
            TicketIssuer::new(&new).public_key().check(Some(&signed), JOB, 0).is_ok(),
            "the first secret signs"
        );
    }

    #[test]
    fn texts_with_another_signature_are_not_tickets() {
        let secret = Secret::new().unwrap();
        let issuer = TicketIssuer::new(&secret);
        let other = TicketIssuer::new(&Secret::new().unwrap()).issue(JOB, 5, SessionId(3), 0);
        let token = seal(
            "feedline-token-1",
            &Ticket { job: JOB, consumer: 5, session: SessionId(3), expires_s: 99 },
            &secret.signing_keys("tokens"),
        );
        for wrong in [other, token, "x.y.z".to_owned()] {
            assert!(
                issuer
                    .public_key()
                    .check(Some(&wrong), JOB, 0)
                    .unwrap_err()
                    .contains("not valid in this cluster")
            );
        }
        let ticket = issuer.issue(JOB, 5, SessionId(3), 0);
        assert!(TicketKey::from_bytes(vec![1]).check(Some(&ticket), JOB, 0).is_err());
    }
}
