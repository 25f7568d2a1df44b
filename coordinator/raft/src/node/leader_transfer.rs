//! Letting another lead: when this member ends, when its disk cannot keep up, and when it is asked to.

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::StateRole;

use super::{MonotonicTime, RaftNode};
use crate::effects::Role;
use crate::members::MemberId;

/// A leader that cannot write stops leading after so many of the shortest elections, whether or not another took over.
const PATIENT_ELECTIONS: u64 = 4;

impl RaftNode {
    /// Transfers leadership to the most up-to-date follower. `false` if there is none, or this member does not lead.
    pub fn hand_over(&mut self, now: MonotonicTime) -> bool {
        self.pass(now);
        self.most_up_to_date_follower().is_some_and(|target| self.begin_transfer(target))
    }

    /// Begins to transfer leadership to `target`. Another leader, or [`Self::hands_over`] being false, ends the transfer.
    ///
    /// # Errors
    /// If this member does not lead or is already transferring leadership, or `target` cannot lead.
    pub fn transfer_leader(&mut self, now: MonotonicTime, target: MemberId) -> Result<(), ServiceError> {
        self.pass(now);
        self.check_target(target)?;
        self.begin_transfer(target.get());
        Ok(())
    }

    fn check_target(&self, target: MemberId) -> Result<(), ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.refusal());
        }
        let (kind, message) = if self.applied.members.url(target).is_none() {
            let message =
                format!("no coordinator has the id {target}; `feedline members list` lists all ids");
            (ServiceErrorKind::NotFound, message)
        } else if target == self.id {
            (ServiceErrorKind::Invalid, format!("coordinator {target} is already the leader"))
        } else if !self.node.store().conf_state().voters.contains(&target.get()) {
            let message = format!(
                "coordinator {target} is a learner and cannot lead yet; try again once `feedline members list` shows that it follows"
            );
            (ServiceErrorKind::Invalid, message)
        } else if self.hands_over() {
            let message = "leadership is already being transferred; try again in a second".to_owned();
            (ServiceErrorKind::Unavailable, message)
        } else {
            return Ok(());
        };
        Err(ServiceError::new(kind, message))
    }

    fn most_up_to_date_follower(&self) -> Option<u64> {
        let voters = &self.node.store().conf_state().voters;
        let others = voters.iter().copied().filter(|id| *id != self.id.get());
        let progress =
            |id: &u64| self.node.raft.prs().get(*id).map_or((false, 0), |it| (it.recent_active, it.matched));
        others.max_by_key(progress)
    }

    /// Stops deciding and gives up the lease, so that the target can be elected at once.
    fn begin_transfer(&mut self, target: u64) -> bool {
        let Some(leading) = &mut self.leading else { return false };
        leading.hands_over = true;
        leading.lease.give_up();
        self.node.transfer_leader(target);
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
