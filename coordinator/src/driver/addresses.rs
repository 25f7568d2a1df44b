//! Events of other coordinators, and the links to their current addresses.

use feedline_proto::MemberInfo;
use feedline_raft::MemberId;

use super::Driver;
use crate::peer_event::PeerEvent;

impl Driver {
    /// Handles an event of another coordinator, which states its address.
    pub(super) fn on_peer(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Messages { sender, messages } => {
                let is_new = self.addresses.on_message(&sender, self.parts.member.members());
                self.follow_address(is_new, sender);
                messages.into_iter().for_each(|message| self.parts.member.receive(self.now, message));
            }
            PeerEvent::Introduced(sender) => {
                let is_new = self.addresses.on_message(&sender, self.parts.member.members());
                self.follow_address(is_new, sender);
            }
            PeerEvent::Answered(answer) => {
                let is_new = self.addresses.on_answer(&answer, self.parts.member.members());
                self.follow_address(is_new, answer);
            }
        }
    }

    /// Uses a new address of another coordinator.
    fn follow_address(&mut self, is_new: bool, stated: MemberInfo) {
        let Some(id) = MemberId::new(stated.id).filter(|_| is_new) else { return };
        self.parts.member.set_address(id, stated.url);
        self.update_links();
    }

    /// Opens and closes links after a membership change.
    pub(super) fn follow_members(&mut self) {
        if self.known_members != *self.parts.member.members() {
            self.known_members = self.parts.member.members().clone();
            self.parts.peers.own().set_has_state();
            let removed = self.parts.member.removed_members();
            self.parts.peers.set_removed(removed);
            self.addresses.forget(removed);
            self.update_links();
        }
    }

    fn update_links(&mut self) {
        let addresses = self.addresses.resolve(self.parts.member.members());
        let outcomes = self.parts.peers.update_links(&addresses);
        outcomes.into_iter().for_each(|outcome| self.on_delivery(outcome));
    }
}
