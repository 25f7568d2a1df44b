//! The state of a leader: its state machine, and the replies that wait for the log or for proof of leadership.

use std::collections::VecDeque;

use feedline_cluster::records::Record;
use feedline_cluster::{Cluster, Ready, Reply, RequestId};
use feedline_data::ids::Millis;

use super::lease::LeaderLease;
use crate::effects::MembershipChange;

/// Replies that wait for one log entry.
struct WaitingReplies {
    /// The entry that must be committed.
    index: u64,
    /// Whether the replies also need the leader's lease. An entry that is older than the requests does not prove that this
    /// member is still the leader.
    needs_lease: bool,
    replies: Vec<(RequestId, Reply)>,
}

/// The conditions that replies wait for: both, unless a simulation injects a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyWaits {
    pub(super) for_log: bool,
    pub(super) for_lease: bool,
}

/// The state of a leader.
pub(super) struct LeaderState {
    pub(super) term: u64,
    /// The time when the term of this leader began.
    pub(super) since: Millis,
    /// Index of the last proposed entry, starting with the entry `Lead`.
    pub(super) index: u64,
    /// The state machine, ahead of the committed log; `None` until all earlier entries are applied.
    pub(super) cluster: Option<Cluster>,
    /// The results of the steps since the last proposal.
    pub(super) ready: Ready,
    waiting_replies: VecDeque<WaitingReplies>,
    /// The records of proposed entries that are not applied yet, by index. A leader does not decode its own entries.
    proposed: VecDeque<(u64, Vec<Record>)>,
    pub(super) lease: LeaderLease,
    pub(super) changes: Vec<(RequestId, MembershipChange)>,
    /// Index of an entry after the last removal of a member; `None` until such an entry is proposed. Members with this entry
    /// on disk also know that the removal is committed.
    pub(super) after_removal: Option<u64>,
    /// Whether leadership is being transferred. Nothing is proposed during a transfer.
    pub(super) is_transferring: bool,
}

impl LeaderState {
    pub(super) fn new(term: u64, index: u64, since: Millis) -> Self {
        Self {
            term,
            since,
            index,
            cluster: None,
            ready: Ready::default(),
            waiting_replies: VecDeque::new(),
            proposed: VecDeque::new(),
            lease: LeaderLease::default(),
            changes: Vec::new(),
            after_removal: Some(index),
            is_transferring: false,
        }
    }

    /// Stores the records of the proposed entry at `index`.
    pub(super) fn add_proposed(&mut self, index: u64, records: Vec<Record>) {
        self.proposed.push_back((index, records));
    }

    /// Removes and returns the records of a committed entry; `None` if this leader did not propose them.
    pub(super) fn take_proposed(&mut self, term: u64, index: u64) -> Option<Vec<Record>> {
        while self.proposed.pop_front_if(|(earlier, _)| *earlier < index).is_some() {}
        let is_own = term == self.term;
        self.proposed.pop_front_if(|(proposed, _)| is_own && *proposed == index).map(|(_, records)| records)
    }

    /// Sends replies once the entry at `index` is committed.
    pub(super) fn reply_when_committed(&mut self, index: u64, replies: Vec<(RequestId, Reply)>) {
        self.index = index;
        // Once committed, the entry proves that no other leader proposed an earlier entry.
        for waiting in self.waiting_replies.iter_mut().filter(|it| it.needs_lease) {
            (waiting.index, waiting.needs_lease) = (index, false);
        }
        self.waiting_replies.push_back(WaitingReplies { index, needs_lease: false, replies });
    }

    /// Sends replies to requests without records once all earlier entries are committed and the lease is valid.
    pub(super) fn reply_when_leading(&mut self, replies: Vec<(RequestId, Reply)>) {
        if !replies.is_empty() {
            self.waiting_replies.push_back(WaitingReplies { index: self.index, needs_lease: true, replies });
        }
    }

    /// Removes and returns the replies that may be sent at `now`, when the entries up to `applied` are committed.
    pub(super) fn take_due_replies(
        &mut self,
        applied: u64,
        now: Millis,
        waits: ReplyWaits,
    ) -> Vec<(RequestId, Reply)> {
        let is_valid = self.lease.is_valid(now);
        let is_due = |it: &mut WaitingReplies| {
            (it.index <= applied || !waits.for_log) && (is_valid || !it.needs_lease || !waits.for_lease)
        };
        let mut replies = Vec::new();
        while let Some(waiting) = self.waiting_replies.pop_front_if(is_due) {
            replies.extend(waiting.replies);
        }
        replies
    }

    /// Returns the requests without a reply.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = RequestId> {
        let waiting = self.waiting_replies.iter().flat_map(|it| &it.replies);
        waiting.chain(&self.ready.replies).map(|(request, _)| *request)
    }
}
