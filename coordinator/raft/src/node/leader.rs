//! What a leader has beside the log: the state machine that decides, and answers that wait.

use std::collections::VecDeque;

use feedline_cluster::{Cluster, Ready, Reply, RequestId};
use feedline_data::ids::Millis;

use super::lease::LeaderLease;
use super::{RaftNode, planted};
use crate::effects::MembershipChange;

/// Answers to what was asked together.
struct Waiting {
    /// The entry that must be kept by a majority.
    index: u64,
    /// Whether nothing of theirs is in it, so that it does not prove that this member still leads.
    needs_lease: bool,
    replies: Vec<(RequestId, Reply)>,
}

/// What a leader has.
pub(super) struct LeaderState {
    pub(super) term: u64,
    /// Index of the entry that says that it leads.
    pub(super) index: u64,
    /// Ahead of the log by what is not kept by a majority yet; `None` until it has everything that was decided before.
    pub(super) cluster: Option<Cluster>,
    /// What was decided in the present turn.
    pub(super) ready: Ready,
    waiting: VecDeque<Waiting>,
    pub(super) lease: LeaderLease,
    pub(super) changes: Vec<(RequestId, MembershipChange)>,
    /// Index of an entry behind the last removal of a member, `None` while there is to be one: those that have it on disk
    /// have there, too, that the removal is decided.
    pub(super) behind_removal: Option<u64>,
    /// Whether another shall lead, so that nothing more is decided.
    pub(super) hands_over: bool,
}

impl LeaderState {
    pub(super) fn new(term: u64, index: u64) -> Self {
        Self {
            term,
            index,
            cluster: None,
            ready: Ready::default(),
            waiting: VecDeque::new(),
            lease: LeaderLease::default(),
            changes: Vec::new(),
            behind_removal: Some(index),
            hands_over: false,
        }
    }

    /// Answers rest on the entry at `index` and all before.
    pub(super) fn answer_when_kept(&mut self, index: u64, replies: Vec<(RequestId, Reply)>) {
        self.index = index;
        // Once it is kept, it proves that nobody else decided before it.
        for waiting in self.waiting.iter_mut().filter(|it| it.needs_lease) {
            (waiting.index, waiting.needs_lease) = (index, false);
        }
        self.waiting.push_back(Waiting { index, needs_lease: false, replies });
    }

    /// Answers rest on what was decided before, and on nobody else having decided since.
    pub(super) fn answer_when_proved(&mut self, replies: Vec<(RequestId, Reply)>) {
        if !replies.is_empty() {
            self.waiting.push_back(Waiting { index: self.index, needs_lease: true, replies });
        }
    }

    /// What may be answered at `now`, with entries up to `applied` kept by a majority; whether it waits for that, and for
    /// proof that nobody else leads.
    pub(super) fn answers(
        &mut self,
        applied: u64,
        now: Millis,
        (kept, proved): (bool, bool),
    ) -> Vec<(RequestId, Reply)> {
        let holds = self.lease.holds(now);
        let may_go =
            |it: &mut Waiting| (it.index <= applied || !kept) && (holds || !it.needs_lease || !proved);
        let mut replies = Vec::new();
        while let Some(waiting) = self.waiting.pop_front_if(may_go) {
            replies.extend(waiting.replies);
        }
        replies
    }

    /// Who waits for an answer that will not come.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = RequestId> {
        let waiting = self.waiting.iter().flat_map(|it| &it.replies);
        waiting.chain(&self.ready.replies).map(|(request, _)| *request)
    }
}

impl RaftNode {
    /// Sends the answers that may go.
    pub(super) fn answer(&mut self) {
        if let Some(leading) = &mut self.leading {
            let waits = planted::waits(&self.settings);
            self.out.replies.extend(leading.answers(self.applied.index, self.now.real, waits));
        }
    }
}
