//! The identity and address of this coordinator, which its introductions and messages state.

use std::sync::atomic::{AtomicBool, Ordering};

use feedline_proto::MemberInfo;
use feedline_raft::MemberId;

/// The identity of this coordinator.
pub(crate) struct OwnIdentity {
    pub(crate) id: MemberId,
    /// URL at which the other coordinators reach this coordinator.
    pub(crate) url: String,
    /// Increases with each start of this coordinator.
    incarnation: u64,
    /// Whether this coordinator is or was part of a cluster.
    has_state: AtomicBool,
}

impl OwnIdentity {
    pub(crate) fn new(id: MemberId, url: String, incarnation: u64, has_state: bool) -> Self {
        Self { id, url, incarnation, has_state: AtomicBool::new(has_state) }
    }

    /// Returns whether this coordinator is or was part of a cluster.
    pub(crate) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    /// Records that this coordinator is part of a cluster.
    pub(crate) fn set_has_state(&self) {
        self.has_state.store(true, Ordering::Release);
    }

    /// Returns the identity for another coordinator.
    pub(crate) fn info(&self) -> MemberInfo {
        MemberInfo {
            id: self.id.get(),
            has_state: self.has_state(),
            url: self.url.clone(),
            incarnation: self.incarnation,
        }
    }
}
