//! Membership changes, one at a time. A new member first catches up as a learner, then votes.

use feedline_cluster::RequestId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::eraftpb::{ConfChange, ConfChangeType};

use super::leader::LeaderState;
use super::{MonotonicTime, RaftNode, planted};
use crate::effects::{MemberView, MembershipChange, Role};
use crate::entry::EntryPayload;
use crate::members::MemberId;

/// A member without a message for this time is unreachable.
const SILENT_MS: u64 = 2_000;
/// A learner with at most this many missing entries becomes a voter.
const PROMOTION_LAG: u64 = 256;

impl RaftNode {
    /// Adds or removes a member. [`Effects::changes`] contains the result once the new member votes or the old one is removed.
    ///
    /// [`Effects::changes`]: crate::Effects::changes
    pub fn change_members(&mut self, now: MonotonicTime, request: RequestId, change: MembershipChange) {
        self.advance_clock(now);
        // A deposed leader may not know the latest members. A proposal would reveal that.
        if self.is_done(&change) && self.has_lease() && !self.is_changing() {
            self.effects.changes.push((request, Ok(self.applied.members.clone())));
            return;
        }
        if let Err(refusal) = self.begin_change(&change) {
            self.effects.changes.push((request, Err(refusal)));
        } else if let Some(leading) = &mut self.leading {
            leading.changes.push((request, change));
        }
    }

    fn begin_change(&mut self, change: &MembershipChange) -> Result<(), ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.refusal());
        }
        let learners = &self.node.store().conf_state().learners;
        // A learner that never catches up must not block other changes.
        let removes_learner =
            matches!(change, MembershipChange::Remove { id } if learners.contains(&id.get()));
        if self.is_changing() || !learners.is_empty() && !removes_learner {
            let is_same =
                self.leading.as_ref().is_some_and(|it| it.changes.iter().any(|(_, other)| other == change));
            let refusal = || {
                ServiceError::new(
                    ServiceErrorKind::Unavailable,
                    "another membership change is in progress; retry when it is done",
                )
            };
            return if is_same { Ok(()) } else { Err(refusal()) };
        }
        let (kind, id, url) = match change {
            // A voter with a new address.
            MembershipChange::Add { id, url }
                if self.node.store().conf_state().voters.contains(&id.get()) =>
            {
                (ConfChangeType::AddNode, *id, url.as_str())
            }
            MembershipChange::Add { id, url } => (ConfChangeType::AddLearnerNode, *id, url.as_str()),
            MembershipChange::Remove { id } if *id == self.id => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Invalid,
                    "the leader cannot remove itself; transfer leadership first with `feedline members transfer-leader ID`",
                ));
            }
            MembershipChange::Remove { id } if !self.has_quorum_without(*id) => {
                return Err(ServiceError::new(
                    ServiceErrorKind::Invalid,
                    "the other coordinators would lose their quorum; start those that are down, or remove those that are lost first",
                ));
            }
            MembershipChange::Remove { id } => (ConfChangeType::RemoveNode, *id, ""),
        };
        self.propose_change(kind, id, url)
    }

    /// Whether no other member can have led up to now.
    fn has_lease(&self) -> bool {
        let leading = self.leading.as_ref();
        leading.is_some_and(|leading| leading.cluster.is_some() && leading.lease.holds(self.now.real))
    }

    /// Whether a membership change is not committed yet, or the remaining members may not know that it is.
    fn is_changing(&self) -> bool {
        let is_known =
            |leading: &LeaderState| leading.after_removal.is_some_and(|it| it <= self.applied.index);
        self.node.raft.has_pending_conf() || !self.leading.as_ref().is_some_and(is_known)
    }

    /// Whether a majority of the remaining voters responds.
    fn has_quorum_without(&self, gone: MemberId) -> bool {
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
                format!("the membership cannot change now: {error}; retry"),
            )
        };
        self.node.propose_conf_change(Vec::new(), change).map_err(refused)
    }

    /// The number of voters.
    pub fn voters(&self) -> usize {
        self.node.store().conf_state().voters.len()
    }

    /// The members with their replication progress.
    ///
    /// # Errors
    /// If this member does not lead.
    pub fn member_views(&self) -> Result<Vec<MemberView>, ServiceError> {
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
        let heard = self.last_heard.get(&id.get());
        heard.is_some_and(|at| self.now.real - at < SILENT_MS)
    }

    /// Makes a learner a voter once it has nearly caught up.
    pub(super) fn promote_learners(&mut self) {
        // A change of the previous leader may not be applied yet.
        let serves = self.role() == (Role::Leader { serving: true });
        if !serves || self.node.raft.has_pending_conf() {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        // Adding a member makes a snapshot. Without it the learner has nothing.
        let base = self.node.store().snapshot_index();
        let has_caught_up = |id: &u64| {
            self.node
                .raft
                .prs()
                .get(*id)
                .is_some_and(|it| it.matched >= base && it.matched + PROMOTION_LAG >= last)
        };
        let ready = self.node.store().conf_state().learners.iter().copied().find(has_caught_up);
        if let Some(id) = ready.and_then(MemberId::new) {
            let url = self.applied.members.url(id).unwrap_or_default().to_owned();
            // The next tick retries.
            let _ = self.propose_change(ConfChangeType::AddNode, id, &url);
        }
    }

    /// Proposes the address of this leader if it has changed since its last life.
    pub(super) fn publish_address(&mut self) {
        let serves = self.role() == (Role::Leader { serving: true });
        let is_known = self.applied.members.url(self.id) == Some(&self.settings.url);
        if serves && !is_known && !self.node.raft.has_pending_conf() {
            let url = self.settings.url.clone();
            // The next tick retries.
            let _ = self.propose_change(ConfChangeType::AddNode, self.id, &url);
        }
    }

    /// Applies a committed membership change.
    pub(super) fn apply_change(&mut self, change: &ConfChange) -> Result<(), String> {
        let conf_state = self.node.apply_conf_change(change).map_err(|error| error.to_string())?;
        self.node.mut_store().set_conf_state(conf_state);
        let Some(id) = MemberId::new(change.node_id) else { return Ok(()) };
        match change.get_change_type() {
            ConfChangeType::RemoveNode => {
                self.applied.members.0.remove(&id);
                self.last_heard.remove(&id.get());
                self.reject_adding(id);
                if let Some(leading) = &mut self.leading {
                    leading.after_removal = None;
                }
                self.confirm_removal();
                if id == self.id {
                    // An earlier leader proposed the removal. Raft would continue to lead.
                    let term = self.term();
                    self.node.raft.become_follower(term, raft::INVALID_ID);
                }
            }
            ConfChangeType::AddNode | ConfChangeType::AddLearnerNode => {
                let url = String::from_utf8_lossy(&change.context).into_owned();
                self.applied.members.0.insert(id, url);
                // Raft accepts only snapshots that contain the receiver as a member.
                self.snapshot_due = true;
            }
        }
        Ok(())
    }

    /// Proposes an entry after a removal, so that the remaining members write that the removal is committed. Otherwise, the
    /// remaining one of two members would restart with a membership of two and miss a majority.
    pub(super) fn confirm_removal(&mut self) {
        let Some(leading) = self.leading.as_mut().filter(|leading| leading.after_removal.is_none()) else {
            return;
        };
        // Raft rejects this during a leader transfer. The next tick retries.
        if self.node.propose(Vec::new(), EntryPayload::Decided(Vec::new()).to_bytes()).is_ok() {
            leading.after_removal = Some(self.node.raft.raft_log.last_index());
        }
    }

    /// Rejects the requests to add a member that was removed before it could vote.
    fn reject_adding(&mut self, removed: MemberId) {
        let Some(leading) = &mut self.leading else { return };
        let refusal =
            || ServiceError::new(ServiceErrorKind::Invalid, "the member was removed before it had caught up");
        let is_void =
            |change: &MembershipChange| matches!(change, MembershipChange::Add { id, .. } if *id == removed);
        for (request, _) in leading.changes.extract_if(.., |(_, change)| is_void(change)) {
            self.effects.changes.push((request, Err(refusal())));
        }
    }

    /// Answers the requests with finished changes.
    pub(super) fn answer_changes(&mut self) {
        let is_changing = self.is_changing();
        let early = planted::answers_changes_early(&self.settings);
        let Some(leading) = self.leading.as_mut().filter(|it| !it.changes.is_empty()) else { return };
        let changes = std::mem::take(&mut leading.changes);
        let (done, open): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(_, change)| early || !is_changing && self.is_done(change));
        let members = self.applied.members.clone();
        self.effects.changes.extend(done.into_iter().map(|(request, _)| (request, Ok(members.clone()))));
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
