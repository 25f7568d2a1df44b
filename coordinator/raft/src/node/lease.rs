//! The leader's lease: until when no other can have been elected, so that what it says without asking anyone is true.
//!
//! With each tick the leader asks the others whether they follow it (Ongaro's dissertation, section 6.4, read index). One
//! that says so will not vote for anyone for as long as an election takes at least, nor does one that has just started,
//! so until three quarters of that after the question was sent nobody else leads, if clocks run alike within a seventh.

use std::collections::VecDeque;

use feedline_data::ids::Millis;

use super::RaftNode;

/// The lease of a leader.
#[derive(Debug, Default)]
pub(super) struct LeaderLease {
    /// Questions without an answer, with the time at which they were asked.
    asked: VecDeque<(u64, Millis)>,
    questions: u64,
    until: Option<Millis>,
    /// Whether another was let be elected in this term: a message that says so may still be on its way.
    given_up: bool,
}

impl LeaderLease {
    pub(super) fn holds(&self, now: Millis) -> bool {
        self.until.is_some_and(|until| now < until) && !self.given_up
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// A new question.
    fn ask(&mut self, now: Millis) -> Vec<u8> {
        self.questions += 1;
        self.asked.push_back((self.questions, now));
        self.questions.to_le_bytes().to_vec()
    }

    /// A majority has said yes to a question.
    fn on_proved(&mut self, question: &[u8], lease_ms: u64) {
        let Ok(question) = question.try_into().map(u64::from_le_bytes) else { return };
        while let Some((number, asked)) = self.asked.pop_front_if(|(number, _)| *number <= question) {
            if number == question {
                self.until = self.until.max(Some(asked + lease_ms));
            }
        }
    }

    /// From here on it lets another be elected; for the rest of its term it never holds.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }
}

impl RaftNode {
    /// Asks the others whether they follow.
    pub(super) fn ask_for_lease(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        if leading.cluster.is_some() && !leading.lease.is_given_up() {
            let question = leading.lease.ask(self.now.real);
            self.node.read_index(question);
        }
    }

    pub(super) fn on_lease_proved(&mut self, question: &[u8]) {
        let lease_ms = self.settings.tick_ms * u64::from(self.settings.election_ticks) * 3 / 4;
        if let Some(leading) = &mut self.leading {
            leading.lease.on_proved(question, lease_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_begins_when_it_was_asked_for() {
        let mut lease = LeaderLease::default();
        let first = lease.ask(1_000);
        let second = lease.ask(1_050);
        assert!(!lease.holds(1_050), "nobody has said yes");
        lease.on_proved(&second, 300);
        assert!(lease.holds(1_349) && !lease.holds(1_350));
        lease.on_proved(&first, 300);
        assert!(lease.holds(1_349), "an old answer takes nothing away");
        let third = lease.ask(1_100);
        lease.give_up();
        lease.on_proved(&third, 300);
        assert!(!lease.holds(1_100), "what was given up does not come back");
    }
}
