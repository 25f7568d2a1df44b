//! Members that come and go, one at a time: a new one first learns what there is, then votes.

use feedline_cluster::RequestId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::eraftpb::{ConfChange, ConfChangeType};

use super::leader::LeaderState;
use super::{MonotonicTime, RaftNode, planted};
use crate::effects::{MemberView, MembershipChange, Role};
use crate::entry::EntryPayload;
use crate::members::MemberId;

/// A member that was not heard for so long is silent.
const SILENT_MS: u64 = 2_000;
/// A learner that lacks no more entries than this may vote.
const NEARLY_ALL: u64 = 256;

impl RaftNode {
    /// Changes the members. The answer comes among the effects once a new one votes, or an old one is gone.
    pub fn change(&mut self, now: MonotonicTime, request: RequestId, change: MembershipChange) {
        self.pass(now);
        // Others may have changed the members since, where it only believes that it leads; what it proposes tells.
        if self.is_done(&change) && self.is_sure() && !self.is_changing() {
            self.out.changes.push((request, Ok(self.applied.members.clone())));
            return;
        }
        if let Err(refusal) = self.begin_change(&change) {
            self.out.changes.push((request, Err(refusal)));
        } else if let Some(leading) = &mut self.leading {
            leading.changes.push((request, change));
        }
    }

    fn begin_change(&mut self, change: &MembershipChange) -> Result<(), ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.refusal());
        }
        let learners = &self.node.store().conf_state().learners;
        // One that never learns enough must not be in the way for ever.
        let gives_up = matches!(change, MembershipChange::Remove { id } if learners.contains(&id.get()));
        if self.is_changing() || !learners.is_empty() && !gives_up {
            let is_same =
                self.leading.as_ref().is_some_and(|it| it.changes.iter().any(|(_, other)| other == change));
            let refusal = || {
                ServiceError::new(
                    ServiceErrorKind::Unavailable,
                    "another member is being added or removed; wait until that is done",
                )
            };
            return if is_same { Ok(()) } else { Err(refusal()) };
        }
        let (kind, id, url) = match change {
            // It votes, and has another address now.
            MembershipChange::Add { id, url }
                if self.node.store().conf_state().voters.contains(&id.get()) =>
            {
                (ConfChangeType::AddNode, *id, url.as_str())
            }
            MembershipChange::Add { id, url } => (ConfChangeType::AddLearnerNode, *id, url.as_str()),
            MembershipChange::Remove { id } if *id == self.id => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Invalid,
                    "the leader cannot remove itself; stop it first, which makes another the leader",
                ));
            }
            MembershipChange::Remove { id } if !self.is_enough_without(*id) => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Invalid,
                    "too few of the others answer to go on without it; start them, or remove those that are gone for good first",
                ));
            }
            MembershipChange::Remove { id } => (ConfChangeType::RemoveNode, *id, ""),
        };
        self.propose_change(kind, id, url)
    }

    /// Whether nobody else can have decided anything up to now.
    fn is_sure(&self) -> bool {
        let leading = self.leading.as_ref();
        leading.is_some_and(|leading| leading.cluster.is_some() && leading.lease.holds(self.now.real))
    }

    /// Whether a change is under way that may yet be decided, or that those who are left may not know to be.
    fn is_changing(&self) -> bool {
        let is_known =
            |leading: &LeaderState| leading.behind_removal.is_some_and(|it| it <= self.applied.index);
        self.node.raft.has_pending_conf() || !self.leading.as_ref().is_some_and(is_known)
    }

    /// Whether a majority of those that would be left answers.
    fn is_enough_without(&self, gone: MemberId) -> bool {
        let voters = &self.node.store().conf_state().voters;
        let left: Vec<MemberId> =
            voters.iter().filter_map(|id| MemberId::new(*id)).filter(|id| *id != gone).collect();
        let alive = left.iter().filter(|id| **id == self.id || self.is_heard(**id)).count();
        alive > left.len() / 2
    }

    fn propose_change(&mut self, kind: ConfChangeType, id: MemberId, url: &str) -> Result<(), ServiceError> {
        let mut change = ConfChange::default();
        change.set_change_type(kind);
        change.node_id = id.get();
        change.context = url.to_owned().into_bytes().into();
        let refused = |error: raft::Error| {
            ServiceError::new(
                ServiceErrorKind::Unavailable,
                format!("the members cannot be changed now: {error}; try again"),
            )
        };
        self.node.propose_conf_change(Vec::new(), change).map_err(refused)
    }

    /// Members that vote.
    pub fn voters(&self) -> usize {
        self.node.store().conf_state().voters.len()
    }

    /// Who takes part, as the leader sees it.
    ///
    /// # Errors
    /// Where another leads.
    pub fn views(&self) -> Result<Vec<MemberView>, ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.refusal());
        }
        let last = self.node.raft.raft_log.last_index();
        let voters = &self.node.store().conf_state().voters;
        let view = |(id, url): (&MemberId, &String)| {
            let progress = self.node.raft.prs().get(id.get());
            MemberView {
                id: *id,
                url: url.clone(),
                leads: *id == self.id,
                votes: voters.contains(&id.get()),
                is_heard: *id == self.id || self.is_heard(*id),
                lacks: last - progress.map_or(0, |it| it.matched.min(last)),
            }
        };
        Ok(self.applied.members.0.iter().map(view).collect())
    }

    fn is_heard(&self, id: MemberId) -> bool {
        let heard = self.heard.get(&id.get());
        heard.is_some_and(|at| self.now.real - at < SILENT_MS)
    }

    /// Lets a new member vote once it knows nearly everything.
    pub(super) fn promote_learners(&mut self) {
        // Before a leader serves, a change of the leader before it may be on its way.
        let serves = self.role() == (Role::Leader { serving: true });
        if !serves || self.node.raft.has_pending_conf() {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        // A snapshot was made when it was added: before it has that it has nothing.
        let base = self.node.store().snapshot_index();
        let knows = |id: &u64| {
            self.node
                .raft
                .prs()
                .get(*id)
                .is_some_and(|it| it.matched >= base && it.matched + NEARLY_ALL >= last)
        };
        let ready = self.node.store().conf_state().learners.iter().copied().find(knows);
        if let Some(id) = ready.and_then(MemberId::new) {
            let url = self.applied.members.url(id).unwrap_or_default().to_owned();
            // Tried again with the next tick.
            let _ = self.propose_change(ConfChangeType::AddNode, id, &url);
        }
    }

    /// Tells the others where this leader is found, if that has changed since its last life.
    pub(super) fn tell_new_address(&mut self) {
        let serves = self.role() == (Role::Leader { serving: true });
        let is_known = self.applied.members.url(self.id) == Some(&self.settings.url);
        if serves && !is_known && !self.node.raft.has_pending_conf() {
            let url = self.settings.url.clone();
            // Tried again with the next tick.
            let _ = self.propose_change(ConfChangeType::AddNode, self.id, &url);
        }
    }

    /// A change is kept by a majority.
    pub(super) fn apply_change(&mut self, change: &ConfChange) -> Result<(), String> {
        let conf_state = self.node.apply_conf_change(change).map_err(|error| error.to_string())?;
        self.node.mut_store().set_conf_state(conf_state);
        let Some(id) = MemberId::new(change.node_id) else { return Ok(()) };
        match change.get_change_type() {
            ConfChangeType::RemoveNode => {
                self.applied.members.0.remove(&id);
                self.heard.remove(&id.get());
                self.refuse_adding(id);
                if let Some(leading) = &mut self.leading {
                    leading.behind_removal = None;
                }
                self.follow_removal();
                if id == self.id {
                    // Another had decided that while it led; raft would have it go on.
                    let term = self.term();
                    self.node.raft.become_follower(term, raft::INVALID_ID);
                }
            }
            ConfChangeType::AddNode | ConfChangeType::AddLearnerNode => {
                let url = String::from_utf8_lossy(&change.context).into_owned();
                self.applied.members.0.insert(id, url);
                // Raft takes no snapshot that does not know of its receiver.
                self.snapshot_due = true;
            }
        }
        Ok(())
    }

    /// Has those who are left write that a removal is decided. From disks that do not have that, two of whom one was
    /// removed would begin as two, and the one that is gone is missing for a majority.
    pub(super) fn follow_removal(&mut self) {
        let Some(leading) = self.leading.as_mut().filter(|leading| leading.behind_removal.is_none()) else {
            return;
        };
        // Refused while another shall lead; tried again with the next tick.
        if self.node.propose(Vec::new(), EntryPayload::Decided(Vec::new()).to_bytes()).is_ok() {
            leading.behind_removal = Some(self.node.raft.raft_log.last_index());
        }
    }

    /// Who waits for one to be added that was removed before it voted.
    fn refuse_adding(&mut self, removed: MemberId) {
        let Some(leading) = &mut self.leading else { return };
        let refusal = || {
            ServiceError::new(ServiceErrorKind::Invalid, "it was removed before it had learnt what there is")
        };
        let is_void =
            |change: &MembershipChange| matches!(change, MembershipChange::Add { id, .. } if *id == removed);
        for (request, _) in leading.changes.extract_if(.., |(_, change)| is_void(change)) {
            self.out.changes.push((request, Err(refusal())));
        }
    }

    /// Tells who waits for a change that is done.
    pub(super) fn answer_changes(&mut self) {
        let is_changing = self.is_changing();
        let early = planted::answers_changes_early(&self.settings);
        let Some(leading) = self.leading.as_mut().filter(|it| !it.changes.is_empty()) else { return };
        let changes = std::mem::take(&mut leading.changes);
        let (done, open): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(_, change)| early || !is_changing && self.is_done(change));
        let members = self.applied.members.clone();
        self.out.changes.extend(done.into_iter().map(|(request, _)| (request, Ok(members.clone()))));
        if let Some(leading) = &mut self.leading {
            leading.changes = open;
        }
    }

    fn is_done(&self, change: &MembershipChange) -> bool {
        let voters = &self.node.store().conf_state().voters;
        match change {
            MembershipChange::Add { id, url } => {
                voters.contains(&id.get()) && self.applied.members.url(*id) == Some(url)
            }
            MembershipChange::Remove { id } => self.applied.members.url(*id).is_none(),
        }
    }
}
