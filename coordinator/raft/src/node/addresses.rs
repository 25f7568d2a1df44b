//! The addresses of the members. A member states its address in its messages. The leader writes new addresses to the
//! membership, and no member waits for that: the driver sends messages to the stated addresses.

use raft::eraftpb::ConfChangeType;

use super::RaftNode;
use crate::effects::Role;
use crate::members::MemberId;

impl RaftNode {
    /// Stores the address that another coordinator has stated. A leader writes the address to the membership.
    pub fn set_address(&mut self, id: MemberId, url: String) {
        self.addresses.insert(id, url);
    }

    /// Returns the current address of a member: the stated address, or the address in the membership.
    pub(super) fn address_of(&self, id: MemberId) -> Option<&str> {
        let stored = self.applied.members.url(id)?;
        Some(self.stated_address(id).unwrap_or(stored))
    }

    /// Returns the address that a coordinator has stated since this member has started.
    fn stated_address(&self, id: MemberId) -> Option<&str> {
        if id == self.id {
            return Some(&self.settings.url);
        }
        self.addresses.get(&id).map(String::as_str)
    }

    /// Proposes the address of a member, if the membership contains another address of this member.
    pub(super) fn publish_address(&mut self) {
        let serves = self.role() == (Role::Leader { serving: true });
        if !serves || self.node.raft.has_pending_conf() || self.is_joint() {
            return;
        }
        let moved = self.applied.members.0.iter().find_map(|(id, stored)| {
            let stated = self.stated_address(*id)?;
            (stated != stored).then(|| (*id, stated.to_owned()))
        });
        let Some((id, url)) = moved else { return };
        let is_learner = self.node.store().conf_state().learners.contains(&id.get());
        let kind = if is_learner { ConfChangeType::AddLearnerNode } else { ConfChangeType::AddNode };
        // The next tick retries.
        let _ = self.propose_change(kind, id, &url);
    }
}
