//! Whoever adds and removes coordinators: one at a time, asking again until it is done or given up. What was answered must
//! be so under every later leader.

use std::collections::{BTreeMap, BTreeSet};

use feedline_cluster::RequestId;
use feedline_data::ids::Millis;
use feedline_raft::{MemberId, Members, MembershipChange};

/// Milliseconds between two times that the same is asked for.
pub(crate) const ASK_MS: Millis = 150;
/// A removal that is refused for so long is given up.
const REMOVING_MS: Millis = 15_000;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The coordinator at this place shall take part.
    Add(usize),
    /// It shall not any more.
    Remove(usize),
}

/// What is being done, and until when it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    step: Option<(Step, Millis)>,
    requests: BTreeSet<RequestId>,
}

impl Operator {
    pub(crate) fn is_busy(&self) -> bool {
        self.step.is_some()
    }

    /// Whether the coordinator at a place shall go.
    pub(crate) fn removes(&self, place: usize) -> bool {
        matches!(self.step, Some((Step::Remove(other), _)) if other == place)
    }

    /// Begins something. A new member that is not one after `patience_ms` is removed again.
    pub(crate) fn begin(&mut self, now: Millis, step: Step, patience_ms: Millis) {
        let patience_ms = if matches!(step, Step::Add(_)) { patience_ms } else { REMOVING_MS };
        self.step = Some((step, now + patience_ms));
        self.requests.clear();
    }

    /// What to ask for now.
    pub(crate) fn next(&mut self, now: Millis) -> Option<Step> {
        match self.step {
            Some((Step::Add(place), until)) if now >= until => {
                self.begin(now, Step::Remove(place), REMOVING_MS);
            }
            Some((Step::Remove(_), until)) if now >= until => self.step = None,
            _ => {}
        }
        self.step.map(|(step, _)| step)
    }

    /// It was asked for by this request.
    pub(crate) fn on_asked(&mut self, request: RequestId) {
        self.requests.insert(request);
    }

    /// The request was done; gives what that has ended.
    pub(crate) fn on_done(&mut self, request: RequestId) -> Option<Step> {
        if !self.requests.contains(&request) {
            return None;
        }
        self.requests.clear();
        self.step.take().map(|(step, _)| step)
    }
}

/// Changes of members that were answered, with the term in which they were.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    present: BTreeMap<MemberId, u64>,
    gone: BTreeMap<MemberId, u64>,
}

impl Answered {
    /// The members that begin.
    pub(crate) fn founded_by(members: &Members) -> Self {
        Self { present: members.ids().map(|id| (id, 0)).collect(), gone: BTreeMap::new() }
    }

    /// From here on a member may be gone.
    pub(crate) fn on_asked(&mut self, change: &MembershipChange) {
        if let MembershipChange::Remove { id } = change {
            self.present.remove(id);
        }
    }

    pub(crate) fn on_done(&mut self, term: u64, id: MemberId, step: Step) {
        match step {
            Step::Add(_) => self.present.insert(id, term),
            Step::Remove(_) => self.gone.insert(id, term),
        };
    }

    /// Checks the members that a leader of this term begins with.
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
