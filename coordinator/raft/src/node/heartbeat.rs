//! Messages from other members, and failed deliveries to other members.

use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType};

use super::{MonotonicTime, RaftNode};
use crate::members::MemberId;

impl RaftNode {
    /// Handles a message from another member.
    pub fn receive(&mut self, now: MonotonicTime, message: Message) {
        self.advance_clock(now);
        let votes = [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote];
        // Before a restart, this member may have promised a leader not to vote for the minimum election timeout.
        let is_bound = self.ticks <= u64::from(self.settings.election_ticks);
        let is_refused = self.ignores_messages() || is_bound && votes.contains(&message.get_msg_type());
        if message.to != self.id.get() || is_refused {
            return;
        }
        if self.is_removed(message.from) {
            tracing::debug!(from = message.from, "ignored a raft message of a removed coordinator");
            return;
        }
        if !self.is_valid(&message) {
            tracing::warn!(from = message.from, kind = ?message.get_msg_type(), "ignored an unexpected raft message");
            return;
        }
        if self.applied.members.0.keys().any(|id| id.get() == message.from) {
            self.last_heard.insert(message.from, self.now.real);
        }
        // Raft rejects only outdated and repeated messages.
        let _ = self.node.step(message);
    }

    /// Returns whether the member with this id was removed. A removed member has no vote.
    fn is_removed(&self, id: u64) -> bool {
        MemberId::new(id).is_some_and(|id| self.applied.removed.contains(&id))
    }

    /// Returns whether a member may have sent this message. Raft panics on some invalid messages.
    fn is_valid(&self, message: &Message) -> bool {
        use MessageType as T;
        match message.get_msg_type() {
            T::MsgHeartbeat => message.commit <= self.node.raft.raft_log.last_index(),
            T::MsgTimeoutNow => self.may_campaign() && !self.is_retiring,
            T::MsgAppend
            | T::MsgAppendResponse
            | T::MsgHeartbeatResponse
            | T::MsgSnapshot
            | T::MsgRequestVote
            | T::MsgRequestVoteResponse
            | T::MsgRequestPreVote
            | T::MsgRequestPreVoteResponse => true,
            _ => false,
        }
    }

    /// Handles an unreachable member.
    pub fn on_unreachable(&mut self, id: MemberId) {
        self.node.report_unreachable(id.get());
    }

    /// Handles the outcome of sending a snapshot to a member.
    pub fn on_snapshot_sent(&mut self, id: MemberId, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(id.get(), status);
    }
}
