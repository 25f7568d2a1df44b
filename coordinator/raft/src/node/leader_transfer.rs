//! Letting another lead: when this member ends, when its disk cannot keep up, and when it is asked to.

use raft::StateRole;

use super::{MonotonicTime, RaftNode};

/// A leader that cannot write stops leading after so many of the shortest elections, whether or not another took over.
const PATIENT_ELECTIONS: u64 = 4;

impl RaftNode {
    /// Lets another lead: the one that knows most. `false` where there is none, or this one does not lead.
    pub fn hand_over(&mut self, now: MonotonicTime) -> bool {
        self.pass(now);
        let voters = &self.node.store().conf_state().voters;
        let others = voters.iter().copied().filter(|id| *id != self.id.get());
        let known =
            |id: &u64| self.node.raft.prs().get(*id).map_or((false, 0), |it| (it.recent_active, it.matched));
        let Some(next) = others.max_by_key(known) else { return false };
        let Some(leading) = &mut self.leading else { return false };
        leading.hands_over = true;
        leading.lease.give_up();
        self.node.transfer_leader(next);
        true
    }

    /// It ends soon: from here on it has another lead, and asks for that with each tick. `false` where there is none, or
    /// this one does not lead.
    pub fn retire(&mut self, now: MonotonicTime) -> bool {
        self.retires = true;
        self.hand_over(now)
    }

    /// Whether another is to lead.
    pub fn hands_over(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.hands_over)
    }

    /// Goes on leading where nobody else came to.
    pub(super) fn take_back(&mut self) {
        let is_over = self.node.raft.lead_transferee.is_none();
        if let Some(leading) = self.leading.as_mut().filter(|leading| leading.hands_over && is_over) {
            leading.hands_over = false;
        }
    }

    /// Has another lead where this one should not.
    pub(super) fn yield_lead(&mut self) {
        let (leads, cannot_write) = (self.node.raft.state == StateRole::Leader, self.cannot_write());
        if !leads || !cannot_write && !self.retires {
            return;
        }
        let has_waited = self.waits_ticks() >= PATIENT_ELECTIONS * self.election_ticks();
        if cannot_write && has_waited && !self.is_alone() {
            // As long as it says that it leads, the others elect nobody.
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
        } else if !self.hands_over() {
            self.hand_over(self.now);
        }
    }

    /// Whether it keeps out of what the others do: what it cannot write it cannot take either, and what would follow
    /// from it would pile up.
    pub(super) fn keeps_out(&self) -> bool {
        self.leading.is_none() && self.cannot_write()
    }

    /// Whether it may stand for election.
    pub(super) fn may_stand(&self) -> bool {
        // Raft cannot look at what lies before a snapshot that is being written, and takes who wins alone, at once, for
        // one that has everything on disk.
        let is_too_early = self.installs() || self.is_alone() && self.is_writing();
        !is_too_early && !self.keeps_out()
    }
}
