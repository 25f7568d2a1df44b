//! The operator that adds and removes coordinators: one at a time, with retries. A confirmed change must remain in effect
//! under every later leader.

use std::collections::{BTreeMap, BTreeSet};

use feedline_cluster::RequestId;
use feedline_data::ids::Millis;
use feedline_raft::{MemberId, Members, MembershipChange};

/// Milliseconds between two attempts.
pub(crate) const ASK_MS: Millis = 150;
/// A removal that is rejected for this long is abandoned.
const REMOVING_MS: Millis = 15_000;

/// A requested change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Adds the coordinator at this place.
    Add(usize),
    /// Removes the coordinator at this place.
    Remove(usize),
}

/// The change in progress and its deadline.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    step: Option<(Step, Millis)>,
    /// Whether a removal was abandoned. The coordinator may or may not be a member.
    has_abandoned: bool,
    requests: BTreeSet<RequestId>,
}

impl Operator {
    pub(crate) fn is_busy(&self) -> bool {
        self.step.is_some()
    }

    /// Whether the operator knows all members.
    pub(crate) fn knows_members(&self) -> bool {
        self.step.is_none() && !self.has_abandoned
    }

    /// Whether the coordinator at a place is being removed.
    pub(crate) fn removes(&self, place: usize) -> bool {
        matches!(self.step, Some((Step::Remove(other), _)) if other == place)
    }

    /// Begins a change. A new member that has not joined after `patience_ms` is removed.
    pub(crate) fn begin(&mut self, now: Millis, step: Step, patience_ms: Millis) {
        let patience_ms = if matches!(step, Step::Add(_)) { patience_ms } else { REMOVING_MS };
        self.step = Some((step, now + patience_ms));
        self.requests.clear();
    }

    /// The change to request now.
    pub(crate) fn next(&mut self, now: Millis) -> Option<Step> {
        match self.step {
            Some((Step::Add(place), until)) if now >= until => {
                self.begin(now, Step::Remove(place), REMOVING_MS);
            }
            Some((Step::Remove(_), until)) if now >= until => (self.step, self.has_abandoned) = (None, true),
            _ => {}
        }
        self.step.map(|(step, _)| step)
    }

    /// Records the request for the change.
    pub(crate) fn on_asked(&mut self, request: RequestId) {
        self.requests.insert(request);
    }

    /// Ends a request. Returns the finished change.
    pub(crate) fn on_done(&mut self, request: RequestId) -> Option<Step> {
        if !self.requests.contains(&request) {
            return None;
        }
        self.requests.clear();
        self.step.take().map(|(step, _)| step)
    }
}

/// Answered membership changes with their terms.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    present: BTreeMap<MemberId, u64>,
    gone: BTreeMap<MemberId, u64>,
}

impl Answered {
    /// The first members.
    pub(crate) fn bootstrap(members: &Members) -> Self {
        Self { present: members.ids().map(|id| (id, 0)).collect(), gone: BTreeMap::new() }
    }

    /// Records that a member may be removed from now on.
    pub(crate) fn on_asked(&mut self, change: &MembershipChange) {
        if let MembershipChange::Remove { id } = change {
            self.present.remove(id);
        }
    }

    /// Records that a member has lost its disk, and may be replaced from now on.
    pub(crate) fn on_lost(&mut self, id: MemberId) {
        self.present.remove(&id);
    }

    /// Records that a replacement was seen in this term.
    pub(crate) fn on_replaced(&mut self, term: u64, old: MemberId, new: MemberId) {
        self.present.insert(new, term);
        self.gone.insert(old, term);
    }

    pub(crate) fn on_done(&mut self, term: u64, id: MemberId, step: Step) {
        match step {
            Step::Add(_) => self.present.insert(id, term),
            Step::Remove(_) => self.gone.insert(id, term),
        };
    }

    /// Checks the members of a new leader of this term.
    pub(crate) fn check(&self, term: u64, members: &Members) -> Result<(), String> {
        let earlier = |told: &BTreeMap<MemberId, u64>| -> Vec<MemberId> {
            told.iter().filter(|(_, at)| **at < term).map(|(id, _)| *id).collect()
        };
        if let Some(id) = earlier(&self.present).into_iter().find(|id| members.url(*id).is_none()) {
            return Err(format!("{id} was added, and the leader of term {term} does not know it"));
        }
        match earlier(&self.gone).into_iter().find(|id| members.url(*id).is_some()) {
            Some(id) => Err(format!("{id} was removed, and the leader of term {term} has it")),
            None => Ok(()),
        }
    }
}
