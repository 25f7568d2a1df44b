//! What comes from other members: their messages, and what became of ours.

use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType};

use super::{MonotonicTime, RaftNode};
use crate::members::MemberId;

impl RaftNode {
    /// A message of another member has come.
    pub fn receive(&mut self, now: MonotonicTime, message: Message) {
        self.pass(now);
        let votes = [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote];
        // Before its last life it may have promised a leader not to vote for a while.
        let bound = self.ticks <= u64::from(self.settings.election_ticks);
        let is_refused = self.keeps_out() || bound && votes.contains(&message.get_msg_type());
        if message.to != self.id.get() || is_refused {
            return;
        }
        if !self.is_sound(&message) {
            tracing::warn!(from = message.from, kind = ?message.get_msg_type(), "a message was not taken");
            return;
        }
        if self.applied.members.0.keys().any(|id| id.get() == message.from) {
            self.heard.insert(message.from, self.now.real);
        }
        // What raft does not take is sent again, or is too old.
        let _ = self.node.step(message);
    }

    /// Whether it is what members send each other: raft panics over some that they do not.
    fn is_sound(&self, message: &Message) -> bool {
        use MessageType as T;
        match message.get_msg_type() {
            T::MsgHeartbeat => message.commit <= self.node.raft.raft_log.last_index(),
            T::MsgTimeoutNow => self.may_stand() && !self.retires,
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

    /// A member could not be reached.
    pub fn on_unreachable(&mut self, id: MemberId) {
        self.node.report_unreachable(id.get());
    }

    /// A message with a snapshot has arrived at a member, or has not.
    pub fn on_snapshot_sent(&mut self, id: MemberId, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(id.get(), status);
    }
}
