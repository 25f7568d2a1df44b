//! Leader transfer: on shutdown, when writes fail or hang, and on request.

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::StateRole;

use super::{MonotonicTime, RaftNode};
use crate::effects::Role;
use crate::members::MemberId;

/// Number of minimum election timeouts after which a leader that cannot write steps down, even without a new leader.
const STEP_DOWN_TIMEOUTS: u64 = 4;

impl RaftNode {
    /// Transfers leadership to the most up-to-date follower. Returns `false` if there are no followers or this member is not
    /// the leader.
    pub fn transfer_to_follower(&mut self, now: MonotonicTime) -> bool {
        self.advance_clock(now);
        self.most_up_to_date_follower().is_some_and(|target| self.start_transfer(target))
    }

    /// Starts a leadership transfer to `target`. The transfer ends when another member leads, or when
    /// [`Self::is_transferring`] returns false. A transfer from a serving leader to itself has no effect: a client may retry
    /// a transfer after a lost reply.
    ///
    /// # Errors
    /// Returns an error if this member is not the leader, is already transferring leadership, or `target` cannot lead.
    pub fn transfer_leader(&mut self, now: MonotonicTime, target: MemberId) -> Result<(), ServiceError> {
        self.advance_clock(now);
        self.check_target(target)?;
        if target != self.id {
            self.start_transfer(target.get());
        }
        Ok(())
    }

    fn check_target(&self, target: MemberId) -> Result<(), ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.rejection());
        }
        let (kind, message) = if self.applied.members.url(target).is_none() {
            let message =
                format!("no coordinator has id {target}; list the ids with `feedline members list`");
            (ServiceErrorKind::NotFound, message)
        } else if !self.node.store().conf_state().voters.contains(&target.get()) {
            let message = format!(
                "coordinator {target} is a learner and cannot lead yet; retry when `feedline members list` shows the coordinator as a follower"
            );
            (ServiceErrorKind::Invalid, message)
        } else if self.is_transferring() {
            let message = "another leadership transfer is in progress; retry in a second".to_owned();
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

    /// Stops proposing records and gives up the lease. The target can then be elected immediately.
    fn start_transfer(&mut self, target: u64) -> bool {
        let Some(leading) = &mut self.leading else { return false };
        leading.is_transferring = true;
        leading.lease.give_up();
        self.node.transfer_leader(target);
        true
    }

    /// Prepares the shutdown: tries to transfer leadership immediately, and again at each tick. Returns `false` if there are
    /// no followers or this member is not the leader.
    pub fn retire(&mut self, now: MonotonicTime) -> bool {
        self.is_retiring = true;
        self.transfer_to_follower(now)
    }

    /// Returns whether leadership is being transferred.
    pub fn is_transferring(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.is_transferring)
    }

    /// Continues to lead after a failed transfer.
    pub(super) fn end_failed_transfer(&mut self) {
        let is_over = self.node.raft.lead_transferee.is_none();
        if let Some(leading) = self.leading.as_mut().filter(|leading| leading.is_transferring && is_over) {
            leading.is_transferring = false;
        }
    }

    /// Transfers leadership if this member is shutting down or cannot write.
    pub(super) fn transfer_if_unfit(&mut self) {
        let (leads, cannot_write) = (self.node.raft.state == StateRole::Leader, self.cannot_write());
        if !leads || !cannot_write && !self.is_retiring {
            return;
        }
        let has_waited = self.waiting_ticks() >= STEP_DOWN_TIMEOUTS * self.election_ticks();
        if cannot_write && has_waited && !self.is_alone() {
            // The other members elect no leader while this member sends heartbeats.
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
        } else if !self.is_transferring() {
            self.transfer_to_follower(self.now);
        }
    }

    /// Returns whether this member ignores messages: a follower that cannot write.
    pub(super) fn ignores_messages(&self) -> bool {
        self.leading.is_none() && self.cannot_write()
    }

    /// Returns whether the member may campaign.
    pub(super) fn may_campaign(&self) -> bool {
        // Raft cannot read entries before a snapshot whose write is unfinished. When a single voter wins, raft assumes that
        // all entries are on disk.
        let is_too_early = self.is_installing() || self.is_alone() && self.is_writing();
        !is_too_early && !self.ignores_messages()
    }
}
