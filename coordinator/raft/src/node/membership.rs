//! Membership changes, one at a time. A new member first catches up as a learner, then becomes a voter.

use feedline_cluster::RequestId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::eraftpb::{ConfChange, ConfChangeType};

use super::leader::LeaderState;
use super::{MonotonicTime, RaftNode, injected_faults};
use crate::effects::{MemberView, MembershipChange, Role};
use crate::entry::EntryPayload;
use crate::members::{MemberId, removed_member};

/// Time without a message after which a member counts as unreachable.
const UNREACHABLE_AFTER_MS: u64 = 2_000;
/// Maximum number of missing entries at which a learner becomes a voter.
const MAX_PROMOTION_LAG: u64 = 256;

impl RaftNode {
    /// Adds or removes a member. [`Effects::membership_results`] contains the result once the new member is a voter or the
    /// old member is removed.
    ///
    /// [`Effects::membership_results`]: crate::Effects::membership_results
    pub fn change_members(&mut self, now: MonotonicTime, request: RequestId, change: MembershipChange) {
        self.advance_clock(now);
        // A deposed leader may not know the current members. Only a proposal would reveal this.
        if self.is_done(&change) && self.has_lease() && !self.is_changing() {
            self.effects.membership_results.push((request, Ok(self.applied.members.clone())));
            return;
        }
        if let Err(refusal) = self.start_change(&change) {
            self.effects.membership_results.push((request, Err(refusal)));
        } else if let Some(leading) = &mut self.leading {
            leading.changes.push((request, change));
        }
    }

    fn start_change(&mut self, change: &MembershipChange) -> Result<(), ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.rejection());
        }
        let learners = &self.node.store().conf_state().learners;
        // A learner that does not catch up must not block other changes.
        let removes_learner =
            matches!(change, MembershipChange::Remove { id } if learners.contains(&id.get()));
        // A coordinator that has joined by itself becomes a voter once it has caught up.
        let is_learning = matches!(change, MembershipChange::Add { id, url }
            if learners.contains(&id.get()) && self.applied.members.url(*id) == Some(url));
        if self.is_changing() || !learners.is_empty() && !removes_learner {
            let is_same =
                self.leading.as_ref().is_some_and(|it| it.changes.iter().any(|(_, other)| other == change));
            return if is_same || is_learning { Ok(()) } else { Err(change_in_progress()) };
        }
        let (kind, id, url) = match change {
            // A voter with a new address.
            MembershipChange::Add { id, url }
                if self.node.store().conf_state().voters.contains(&id.get()) =>
            {
                (ConfChangeType::AddNode, *id, url.as_str())
            }
            MembershipChange::Add { id, .. } if self.applied.removed.contains(id) => {
                return Err(removed_member(*id));
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
                    "the remaining coordinators would have no quorum; start the coordinators that are down, or remove lost coordinators first",
                ));
            }
            MembershipChange::Remove { id } => (ConfChangeType::RemoveNode, *id, ""),
        };
        self.propose_change(kind, id, url)
    }

    /// Returns whether this member has provably been the leader up to now.
    pub(super) fn has_lease(&self) -> bool {
        let leading = self.leading.as_ref();
        leading.is_some_and(|leading| leading.cluster.is_some() && leading.lease.is_valid(self.now.real))
    }

    /// Returns whether a membership change is not committed yet, or the remaining members may not know about the commit.
    pub(super) fn is_changing(&self) -> bool {
        let is_known =
            |leading: &LeaderState| leading.after_removal.is_some_and(|it| it <= self.applied.index);
        let is_pending = self.node.raft.has_pending_conf() || self.is_joint();
        is_pending || !self.leading.as_ref().is_some_and(is_known)
    }

    /// Returns whether a majority of the remaining voters is reachable.
    fn has_quorum_without(&self, removed: MemberId) -> bool {
        let voters = &self.node.store().conf_state().voters;
        let left: Vec<MemberId> =
            voters.iter().filter_map(|id| MemberId::new(*id)).filter(|id| *id != removed).collect();
        let alive = left.iter().filter(|id| **id == self.id || self.is_reachable(**id)).count();
        alive > left.len() / 2
    }

    pub(super) fn propose_change(
        &mut self,
        kind: ConfChangeType,
        id: MemberId,
        url: &str,
    ) -> Result<(), ServiceError> {
        let mut change = ConfChange::default();
        change.set_change_type(kind);
        change.node_id = id.get();
        change.context = url.to_owned().into_bytes().into();
        self.node.propose_conf_change(Vec::new(), change).map_err(|error| refused_proposal(&error))
    }

    /// Returns the number of voters.
    pub fn voters(&self) -> usize {
        self.node.store().conf_state().voters.len()
    }

    /// Returns the members with their replication progress.
    ///
    /// # Errors
    /// Returns an error if this member is not the leader.
    pub fn member_views(&self) -> Result<Vec<MemberView>, ServiceError> {
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.rejection());
        }
        let last = self.node.raft.raft_log.last_index();
        let conf_state = self.node.store().conf_state();
        let is_voter = |id: u64| conf_state.voters.contains(&id) || conf_state.voters_outgoing.contains(&id);
        let view = |(id, url): (&MemberId, &String)| {
            let progress = self.node.raft.prs().get(id.get());
            MemberView {
                id: *id,
                url: url.clone(),
                is_leader: *id == self.id,
                is_voter: is_voter(id.get()),
                is_reachable: *id == self.id || self.is_reachable(*id),
                missing_entries: last - progress.map_or(0, |it| it.matched.min(last)),
            }
        };
        Ok(self.applied.members.0.iter().map(view).collect())
    }

    fn is_reachable(&self, id: MemberId) -> bool {
        let heard = self.last_heard.get(&id.get());
        heard.is_some_and(|at| self.now.real - at < UNREACHABLE_AFTER_MS)
    }

    /// Promotes learners that have nearly caught up to voters.
    pub(super) fn promote_learners(&mut self) {
        // A change by the previous leader may not be applied yet.
        let serves = self.role() == (Role::Leader { serving: true });
        if !serves || self.node.raft.has_pending_conf() || self.is_joint() {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        // The snapshot is created when a learner is added. Without the snapshot, the learner has no state.
        let base = self.node.store().snapshot_index();
        let has_caught_up = |id: &u64| {
            self.node
                .raft
                .prs()
                .get(*id)
                .is_some_and(|it| it.matched >= base && it.matched + MAX_PROMOTION_LAG >= last)
        };
        let ready = self.node.store().conf_state().learners.iter().copied().filter(has_caught_up);
        let mut ids = ready.filter_map(MemberId::new);
        if let Some((id, replaced)) = ids.find_map(|id| Some((id, self.replaced_by(id)?))) {
            // The next tick retries.
            let _ = self.propose_promotion(id, &replaced);
        }
    }

    /// Applies a committed membership change.
    pub(super) fn apply_change(&mut self, change: &ConfChange) -> Result<(), String> {
        let conf_state = self.node.apply_conf_change(change).map_err(|error| error.to_string())?;
        self.node.mut_store().set_conf_state(conf_state);
        let Some(id) = MemberId::new(change.node_id) else { return Ok(()) };
        match change.get_change_type() {
            ConfChangeType::RemoveNode => self.on_removed(id),
            ConfChangeType::AddNode | ConfChangeType::AddLearnerNode => {
                let url = String::from_utf8_lossy(&change.context).into_owned();
                self.applied.members.0.insert(id, url);
                // Raft accepts only snapshots that contain the receiver as a member.
                self.snapshot_due = true;
            }
        }
        Ok(())
    }

    /// Handles the removal of a member.
    pub(super) fn on_removed(&mut self, id: MemberId) {
        self.applied.remove_member(id);
        self.last_heard.remove(&id.get());
        self.addresses.remove(&id);
        self.reject_adding(id);
        if let Some(leading) = &mut self.leading {
            leading.after_removal = None;
        }
        self.confirm_removal();
        if id == self.id {
            // An earlier leader proposed the removal. Without this call, raft would continue to lead.
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Proposes an entry after a removal. With this entry, the remaining members also write that the removal is committed.
    /// Otherwise, the last of two members would restart with two members in its configuration, and without a majority.
    pub(super) fn confirm_removal(&mut self) {
        let Some(leading) = self.leading.as_mut().filter(|leading| leading.after_removal.is_none()) else {
            return;
        };
        // Raft rejects proposals during a leader transfer. The next tick retries.
        if self.node.propose(Vec::new(), EntryPayload::Records(Vec::new()).to_bytes()).is_ok() {
            leading.after_removal = Some(self.node.raft.raft_log.last_index());
        }
    }

    /// Rejects the requests to add a member that was removed before it could vote.
    fn reject_adding(&mut self, removed: MemberId) {
        let Some(leading) = &mut self.leading else { return };
        let refusal = || {
            ServiceError::new(
                ServiceErrorKind::Invalid,
                "the member was removed before it became a voter; start it with an empty data directory, and add it again",
            )
        };
        let is_void =
            |change: &MembershipChange| matches!(change, MembershipChange::Add { id, .. } if *id == removed);
        for (request, _) in leading.changes.extract_if(.., |(_, change)| is_void(change)) {
            self.effects.membership_results.push((request, Err(refusal())));
        }
    }

    /// Answers the requests whose changes are finished.
    pub(super) fn answer_changes(&mut self) {
        let is_changing = self.is_changing();
        let early = injected_faults::answers_changes_early(&self.settings);
        let Some(leading) = self.leading.as_mut().filter(|it| !it.changes.is_empty()) else { return };
        let changes = std::mem::take(&mut leading.changes);
        let (done, open): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(_, change)| early || !is_changing && self.is_done(change));
        let members = self.applied.members.clone();
        self.effects
            .membership_results
            .extend(done.into_iter().map(|(request, _)| (request, Ok(members.clone()))));
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

/// Returns the error for a change during another change.
pub(super) fn change_in_progress() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "another membership change is in progress; retry after that change has completed",
    )
}

/// Returns the error for a change that raft does not accept now.
pub(super) fn refused_proposal(error: &raft::Error) -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        format!("cannot change the membership now: {error}; retry"),
    )
}
