//! One coordinator of several that decide together: a raft node with the cluster's state machine on it, and its log.
//!
//! [`RaftNode`] is told the time, messages and what was written, and says what to send, write and answer, so that a
//! simulator can drive it as well as a process. [`log`] keeps on disk what it wants written.

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
pub use members::{MemberId, Members};
#[cfg(feature = "plants")]
pub use node::PlantedBug;
pub use node::{MonotonicTime, RaftNode, RaftSettings};
pub use persisted::{LogWrite, PersistedState};
pub use raft::eraftpb::Message;

/// Reads `bytes` as a log file, as an entry of it, and as a message of another member.
#[cfg(feature = "fuzzing")]
pub fn read_anything(bytes: &[u8]) {
    log::read_anything(bytes);
    // Whether they can be read does not matter; that it ends does.
    let _ = (entry::EntryPayload::from_bytes(bytes), decode(bytes));
}

/// What a member writes and sends, by name: what a fuzzer begins with.
#[cfg(feature = "fuzzing")]
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let id = MemberId::from_random(7 << 1);
    let members = Members([(id, "http://127.0.0.1:7070".to_owned())].into());
    let mut persisted = PersistedState::founded_by(&members);
    let payload = entry::EntryPayload::Lead { life: 3 }.to_bytes();
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
    let message = encode(&message).expect("plain messages have a form").to_vec();
    let [log, frame] = log::samples(id, &persisted);
    vec![("log", log), ("frame", frame), ("entry", payload), ("message", message)]
}

/// The bytes of a message on its way to another member; `None` where it has no form, which does not happen.
pub fn encode(message: &Message) -> Option<bytes::Bytes> {
    protobuf::Message::write_to_bytes(message).ok().map(Into::into)
}

/// Reads a message of another member.
///
/// # Errors
/// One clause where it cannot be read.
pub fn decode(bytes: &[u8]) -> Result<Message, String> {
    protobuf::Message::parse_from_bytes(bytes).map_err(|error| format!("a message cannot be read: {error}"))
}

/// Whether a message brings a snapshot, whose sender wants to know whether it has arrived.
pub fn has_snapshot(message: &Message) -> bool {
    message.get_msg_type() == raft::eraftpb::MessageType::MsgSnapshot
}
