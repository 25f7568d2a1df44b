//! The replies of a leader, and the read index requests that prove its leadership.

use super::{RaftNode, injected_faults};

impl RaftNode {
    /// Sends the replies that are due.
    pub(super) fn send_due_replies(&mut self) {
        if let Some(leading) = &mut self.leading {
            let waits = injected_faults::reply_waits(&self.settings);
            self.effects.replies.extend(leading.take_due_replies(self.applied.index, self.now.real, waits));
        }
    }

    /// Asks the followers to confirm that this member is the leader.
    pub(super) fn renew_lease(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        if leading.cluster.is_some() && !leading.lease.is_given_up() {
            let context = leading.lease.next_request(self.now.real);
            self.node.read_index(context);
        }
    }

    pub(super) fn on_read_index_confirmed(&mut self, context: &[u8]) {
        let lease_ms = self.settings.tick_ms * u64::from(self.settings.election_ticks) * 3 / 4;
        if let Some(leading) = &mut self.leading {
            leading.lease.on_confirmed(context, lease_ms);
        }
    }
}
