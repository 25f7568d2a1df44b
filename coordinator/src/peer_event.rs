//! What the driver receives from other coordinators.

use feedline_proto::MemberInfo;
use feedline_raft::Message;

/// An event of another coordinator.
pub(crate) enum PeerEvent {
    /// The coordinator sent raft messages.
    Messages { sender: MemberInfo, messages: Vec<Message> },
    /// The coordinator introduced itself.
    Introduced(MemberInfo),
    /// The coordinator answered an introduction of this coordinator.
    Answered(MemberInfo),
}
