//! One coordinator of several that decide together: a raft node with the cluster's state machine on it, and its log.
//!
//! [`Member`] is told the time, messages and what was written, and says what to send, write and answer, so that a
//! simulator can drive it as well as a process. [`log`] keeps on disk what it wants written.

mod effects;
mod entry;
pub mod files;
mod image;
pub mod log;
mod member;
mod members;
mod storage;
mod stored;

pub use effects::{Change, Effects, MemberView, Role, Serving};
#[cfg(feature = "plants")]
pub use member::Plant;
pub use member::{Member, Now, Settings};
pub use members::{MemberId, Members};
pub use raft::eraftpb::Message;
pub use stored::{Stored, Write};

/// Reads `bytes` as a log file, as an entry of it, and as a message of another member.
#[cfg(feature = "fuzzing")]
pub fn read_anything(bytes: &[u8]) {
    log::read_anything(bytes);
    // Whether they can be read does not matter; that it ends does.
    let _ = (entry::Payload::from_bytes(bytes), decode(bytes));
}

/// What a member writes and sends, by name: what a fuzzer begins with.
#[cfg(feature = "fuzzing")]
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let id = MemberId::from_random(7 << 1);
    let members = Members([(id, "http://127.0.0.1:7070".to_owned())].into());
    let mut stored = Stored::founded_by(&members);
    let payload = entry::Payload::Lead { life: 3 }.to_bytes();
    let first = stored.snapshot.get_metadata().index + 1;
    stored.entries = (first..first + 3)
        .map(|index| raft::eraftpb::Entry {
            index,
            term: 1,
            data: payload.clone().into(),
            ..Default::default()
        })
        .collect();
    let mut message = Message { from: id.get(), to: 5, term: 1, ..Message::default() };
    message.set_msg_type(raft::eraftpb::MessageType::MsgAppend);
    message.entries = stored.entries.clone().into();
    let message = encode(&message).expect("plain messages have a form").to_vec();
    let [log, frame] = log::samples(id, &stored);
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
