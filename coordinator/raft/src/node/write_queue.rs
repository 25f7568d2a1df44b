//! The raft steps whose writes are not durable yet.

use std::collections::VecDeque;

use raft::eraftpb::Message;

/// A raft step.
pub(super) struct PendingWrite {
    pub(super) number: u64,
    /// Messages that may be sent once the step is durable.
    pub(super) messages: Vec<Message>,
    /// Whether the step writes anything.
    pub(super) must_write: bool,
    /// Whether the step installs a snapshot from a leader.
    pub(super) is_install: bool,
}

/// The steps that wait for the disk, in order.
#[derive(Default)]
pub(super) struct WriteQueue {
    /// The steps, oldest first. The first step always has a write.
    pub(super) steps: VecDeque<PendingWrite>,
    /// The tick of the last finished write, or the tick at which a step started to wait.
    pub(super) waiting_since: u64,
    /// Whether the last write failed. The disk retries failed writes.
    pub(super) has_failed: bool,
}
