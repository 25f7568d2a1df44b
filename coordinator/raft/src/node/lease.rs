//! The leader's lease: a period in which no other leader can be elected. During this period, the leader may answer reads
//! alone.
//!
//! With each tick the leader sends a read index request (Ongaro's dissertation, section 6.4). A follower that confirms a
//! request does not vote for another candidate within the minimum election timeout, and neither does a member that has just
//! started. Therefore, no other member leads until three quarters of this timeout after the request was sent, provided that
//! the clock rates differ by less than one seventh.

use std::collections::VecDeque;

use feedline_data::ids::Millis;

/// The lease of a leader, renewed by confirmed read index requests.
#[derive(Debug, Default)]
pub(super) struct LeaderLease {
    /// Unconfirmed requests with their send times.
    unconfirmed: VecDeque<(u64, Millis)>,
    requests: u64,
    expires_at: Option<Millis>,
    /// Whether the lease has ended for the rest of the term, because a message that starts another election may be in
    /// flight.
    is_given_up: bool,
}

impl LeaderLease {
    pub(super) fn is_valid(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| now < at) && !self.is_given_up
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Returns the context of a new read index request.
    pub(super) fn next_request(&mut self, now: Millis) -> Vec<u8> {
        self.requests += 1;
        self.unconfirmed.push_back((self.requests, now));
        self.requests.to_le_bytes().to_vec()
    }

    /// Extends the lease after a majority has confirmed a request.
    pub(super) fn on_confirmed(&mut self, context: &[u8], lease_ms: u64) {
        let Ok(request) = context.try_into().map(u64::from_le_bytes) else { return };
        while let Some((number, sent_at)) = self.unconfirmed.pop_front_if(|(number, _)| *number <= request) {
            if number == request {
                self.expires_at = self.expires_at.max(Some(sent_at + lease_ms));
            }
        }
    }

    /// Ends the lease for the rest of the term. Another member can then be elected.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_begins_when_its_request_was_sent() {
        let mut lease = LeaderLease::default();
        let first = lease.next_request(1_000);
        let second = lease.next_request(1_050);
        assert!(!lease.is_valid(1_050), "no request is confirmed");
        lease.on_confirmed(&second, 300);
        assert!(lease.is_valid(1_349) && !lease.is_valid(1_350));
        lease.on_confirmed(&first, 300);
        assert!(lease.is_valid(1_349), "a late confirmation does not shorten the lease");
        let third = lease.next_request(1_100);
        lease.give_up();
        lease.on_confirmed(&third, 300);
        assert!(!lease.is_valid(1_100), "the lease does not return after it was given up");
    }
}
