//! The raft steps whose writes are not durable yet.

use std::collections::VecDeque;

use raft::eraftpb::Message;

/// One raft step, in order.
pub(super) struct PendingWrite {
    pub(super) number: u64,
    /// Messages that may be sent once the step is durable.
    pub(super) messages: Vec<Message>,
    /// Whether the step writes anything.
    pub(super) must_write: bool,
    /// Whether the step installs a leader's snapshot.
    pub(super) installs: bool,
}

/// The steps that wait for the disk.
#[derive(Default)]
pub(super) struct WriteQueue {
    /// The first one, if any, writes something.
    pub(super) steps: VecDeque<PendingWrite>,
    /// The tick at which a write finished last, or at which a step began to wait.
    pub(super) since: u64,
    /// Whether the last write failed. The disk retries it.
    pub(super) has_failed: bool,
}
