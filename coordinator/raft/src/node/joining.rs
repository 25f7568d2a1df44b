//! Coordinators that join without a command: as additional members, or in place of a member that has lost its disk.
//!
//! A coordinator with an empty disk asks to join. It catches up as a learner. If its address belongs to members that have
//! been silent for a while, it becomes a voter and they are removed in one change, with joint consensus. The number of
//! voters is the same before and after the change.

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};

use super::membership::{change_in_progress, refused_proposal};
use super::{MonotonicTime, RaftNode};
use crate::effects::Role;
use crate::members::{MemberId, removed_member};

impl RaftNode {
    /// Returns the ids of removed members, which can neither vote nor join again.
    pub fn removed_members(&self) -> &[MemberId] {
        &self.applied.removed
    }

    /// Adds a coordinator without a state as a learner. It becomes a voter once it has caught up. Succeeds for a member, so
    /// that the coordinator can repeat its request until it receives its state.
    ///
    /// # Errors
    /// Returns an error if this member is not the leader, the coordinator was removed before, its address belongs to a
    /// member that is not silent, or another change is in progress.
    pub fn join(&mut self, now: MonotonicTime, id: MemberId, url: &str) -> Result<(), ServiceError> {
        self.advance_clock(now);
        if self.role() != (Role::Leader { serving: true }) {
            return Err(self.rejection());
        }
        if self.applied.removed.contains(&id) {
            return Err(removed_member(id));
        }
        if self.applied.members.url(id).is_some() {
            return Ok(());
        }
        if let Some(other) = self.occupants(id, url).into_iter().find(|other| !self.is_replaceable(*other)) {
            return Err(ServiceError::new(
                ServiceErrorKind::Unavailable,
                format!(
                    "the address {url} belongs to coordinator {other}; the new coordinator {id} replaces it after {} s without a message from it; if both run, start one of them with another --advertise",
                    self.settings.replace_after_ms / 1_000
                ),
            ));
        }
        if self.is_changing() {
            return Err(change_in_progress());
        }
        self.propose_change(ConfChangeType::AddLearnerNode, id, url)
    }

    /// Returns the members that a learner replaces when it becomes a voter; `None` if it cannot become a voter yet.
    pub(super) fn replaced_by(&self, id: MemberId) -> Option<Vec<MemberId>> {
        let occupants = self.occupants(id, self.address_of(id)?);
        occupants.iter().all(|other| self.is_replaceable(*other)).then_some(occupants)
    }

    /// Returns the other members with this address.
    fn occupants(&self, id: MemberId, url: &str) -> Vec<MemberId> {
        let others = self.applied.members.ids().filter(|other| *other != id);
        others.filter(|other| self.address_of(*other) == Some(url)).collect()
    }

    /// Returns whether a member has been silent long enough to be replaced by another coordinator. A leader without a
    /// lease may have been suspended, and has not read the messages of the members.
    fn is_replaceable(&self, id: MemberId) -> bool {
        let Some(leading) = self.leading.as_ref().filter(|_| id != self.id && self.has_lease()) else {
            return false;
        };
        let heard = self.last_heard.get(&id.get()).copied().unwrap_or_default();
        self.now.real.saturating_sub(heard.max(leading.since)) >= self.settings.replace_after_ms
    }

    /// Proposes that a learner becomes a voter, and that the replaced members are removed in the same change.
    pub(super) fn propose_promotion(
        &mut self,
        id: MemberId,
        replaced: &[MemberId],
    ) -> Result<(), ServiceError> {
        let url = self.applied.members.url(id).unwrap_or_default().to_owned();
        if replaced.is_empty() {
            return self.propose_change(ConfChangeType::AddNode, id, &url);
        }
        tracing::info!(%id, ?replaced, url, "a new coordinator replaces a silent member");
        let added = std::iter::once(single_change(ConfChangeType::AddNode, id));
        let removed = replaced.iter().map(|other| single_change(ConfChangeType::RemoveNode, *other));
        let mut change = ConfChangeV2::default();
        // The leader leaves the joint configuration in `leave_joint`. Raft would not if its leader changed first.
        change.set_transition(ConfChangeTransition::Explicit);
        change.changes = added.chain(removed).collect();
        self.node.propose_conf_change(Vec::new(), change).map_err(|error| refused_proposal(&error))
    }

    /// Returns whether a replacement is half done: entries and elections need a majority of the old voters and a majority of
    /// the new voters.
    pub(super) fn is_joint(&self) -> bool {
        !self.node.store().conf_state().voters_outgoing.is_empty()
    }

    /// Proposes the second half of a replacement.
    pub(super) fn leave_joint(&mut self) {
        let serves = self.role() == (Role::Leader { serving: true });
        if serves && self.is_joint() && !self.node.raft.has_pending_conf() {
            // The next tick retries.
            let _ = self.node.propose_conf_change(Vec::new(), ConfChangeV2::default());
        }
    }

    /// Applies one half of a committed replacement.
    pub(super) fn apply_replacement(&mut self, change: &ConfChangeV2) -> Result<(), String> {
        let conf_state = self.node.apply_conf_change(change).map_err(|error| error.to_string())?;
        let present: Vec<u64> = [
            &conf_state.voters,
            &conf_state.voters_outgoing,
            &conf_state.learners,
            &conf_state.learners_next,
        ]
        .into_iter()
        .flatten()
        .copied()
        .collect();
        self.node.mut_store().set_conf_state(conf_state);
        let removed: Vec<MemberId> =
            self.applied.members.ids().filter(|id| !present.contains(&id.get())).collect();
        removed.into_iter().for_each(|id| self.on_removed(id));
        Ok(())
    }
}

fn single_change(kind: ConfChangeType, id: MemberId) -> ConfChangeSingle {
    let mut change = ConfChangeSingle::default();
    change.set_change_type(kind);
    change.node_id = id.get();
    change
}
