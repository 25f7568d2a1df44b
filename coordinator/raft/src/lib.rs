//! Consensus among coordinators: a raft node that replicates the cluster's state machine, and its log.
//!
//! [`RaftNode`] receives the time, messages, requests and finished writes, and returns messages, writes and replies. Both a
//! process and a simulation can drive a node. [`log`] writes to disk.

mod effects;
mod entry;
pub mod files;
pub mod log;
mod members;
mod node;
mod persisted;
mod snapshot;
mod storage;

pub use effects::{Effects, MemberView, MembershipChange, Role, ServingChange};
pub use members::{MemberId, Members, removed_member};
pub use node::{InjectedFault, MonotonicTime, RaftNode, RaftSettings};
pub use persisted::{LogWrite, PersistedState};
pub use raft::eraftpb::Message;

/// Decodes `bytes` as a log file, as a log entry and as a message from another member. This is the entry point of the fuzz
/// target `raft_log`.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    log::read_anything(bytes);
    // Decoding may fail, but must not panic or hang.
    let _ = (entry::EntryPayload::from_bytes(bytes), decode(bytes));
}

/// Samples of the data that a member writes and sends, by name. They are the seeds of the fuzz target `raft_log`.
#[doc(hidden)]
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let id = MemberId::from_random(7 << 1);
    let members = Members([(id, "http://127.0.0.1:7070".to_owned())].into());
    let mut persisted = PersistedState::bootstrap(&members);
    let payload = entry::EntryPayload::Lead { incarnation: 3 }.to_bytes();
    let first = persisted.snapshot.get_metadata().index + 1;
    persisted.entries = (first..first + 3)
        .map(|index| raft::eraftpb::Entry {
            index,
            term: 1,
            data: payload.clone().into(),
            ..Default::default()
        })
        .collect();
    let mut message = Message { from: id.get(), to: 5, term: 1, ..Message::default() };
    message.set_msg_type(raft::eraftpb::MessageType::MsgAppend);
    message.entries = persisted.entries.clone().into();
    let message = encode(&message).expect("plain messages can be encoded").to_vec();
    let [log, frame] = log::samples(id, &persisted);
    vec![("log", log), ("frame", frame), ("entry", payload), ("message", message)]
}

/// Encodes a message to another member. Returns `None` if encoding fails.
pub fn encode(message: &Message) -> Option<bytes::Bytes> {
    protobuf::Message::write_to_bytes(message).ok().map(Into::into)
}

/// Decodes a message from another member.
///
/// # Errors
/// Returns an error if the bytes are not a valid message. The error is part of a sentence.
pub fn decode(bytes: &[u8]) -> Result<Message, String> {
    protobuf::Message::parse_from_bytes(bytes).map_err(|error| format!("invalid raft message: {error}"))
}

/// Returns whether a message contains a snapshot. The node needs a delivery report for each snapshot.
pub fn has_snapshot(message: &Message) -> bool {
    message.get_msg_type() == raft::eraftpb::MessageType::MsgSnapshot
}
