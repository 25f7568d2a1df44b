//! The life of a coordinator's process and disk: starts, crashes and shutdowns, and disks that are lost and replaced.

use feedline_data::ids::Millis;
use feedline_raft::{self as replica, MemberId, PersistedState, RaftNode, Role};

use super::{Coordinators, Node, Outcome};
use crate::dice::Dice;

/// Maximum wait for another leader during a shutdown.
const LEADER_TRANSFER_MS: Millis = 1_000;
/// Maximum wait for writes during a shutdown.
const GRACE_MS: Millis = 10_000;

impl Coordinators {
    /// Starts a coordinator from the state on its disk.
    pub(crate) fn start(&mut self, place: usize) -> Result<(), String> {
        self.nodes[place].incarnation += 1;
        let settings = replica::RaftSettings { url: self.url(place), ..self.settings.clone() };
        let node = &mut self.nodes[place];
        (node.is_stuck, node.ends_since) = (false, None);
        // An incarnation is larger only than earlier incarnations of the same coordinator.
        let seed = 1 + node.incarnation * 7 + place as u64;
        let member = RaftNode::new(node.id, node.disk.clone(), settings, seed);
        node.member = Some(member.map_err(|error| format!("coordinator {place} cannot start: {error}"))?);
        Ok(())
    }

    /// Adds a coordinator with an empty disk.
    pub(crate) fn bring_in(&mut self, place: usize) -> Result<(), String> {
        self.inside.push(place);
        self.start(place)
    }

    /// Stops a removed coordinator and empties its disk. Its next start is another member.
    pub(crate) fn take_out(&mut self, place: usize) {
        self.last_id += 1;
        self.inside.retain(|other| *other != place);
        let node = &mut self.nodes[place];
        let (incarnation, rate) = (node.incarnation + 1, node.rate);
        *node = Node { incarnation, ..Node::new(self.last_id, rate, PersistedState::default()) };
    }

    /// Whether a majority remains without the disk of a coordinator: the leader has the expected voters and no learner.
    pub(crate) fn may_lose_disk(&self, place: usize) -> bool {
        let Some(leader) = self.leader().and_then(|leader| self.nodes[leader].member.as_ref()) else {
            return false;
        };
        let inside = |id: MemberId| self.inside.iter().any(|place| self.nodes[*place].id == id);
        let members = leader.members();
        let is_expected = members.ids().all(inside) && members.0.len() == self.inside.len();
        // A coordinator with another address after each start would not replace its former self.
        !self.moves
            && self.inside.contains(&place)
            && self.inside.len() > 2
            && is_expected
            && leader.voters() == self.inside.len()
    }

    /// Replaces a coordinator by one with an empty disk at the same address. Returns the id of the lost member.
    pub(crate) fn lose_disk(&mut self, place: usize) -> Result<MemberId, String> {
        self.last_id += 1;
        let node = &mut self.nodes[place];
        let (lost, home, incarnation, rate) = (node.id, node.home, node.incarnation + 1, node.rate);
        *node = Node { home, incarnation, ..Node::new(self.last_id, rate, PersistedState::default()) };
        self.answered.on_lost(lost);
        self.start(place)?;
        Ok(lost)
    }

    /// Sends the request of a coordinator without a state to another coordinator.
    pub(crate) fn join(&mut self, at: usize, now: Millis, place: usize) -> Result<Outcome, String> {
        let (id, url) = (self.nodes[place].id, self.url(place));
        self.with(at, now, |member, time| {
            // The coordinator repeats its request.
            let _ = member.join(time, id, &url);
        })
    }

    /// Whether the leader has replaced a lost member by the coordinator at a place.
    pub(crate) fn has_replaced(&mut self, lost: MemberId, place: usize) -> bool {
        let new = self.nodes[place].id;
        let Some(leader) = self.leader().and_then(|leader| self.nodes[leader].member.as_ref()) else {
            return false;
        };
        let is_replaced = leader.members().url(lost).is_none() && leader.members().url(new).is_some();
        if is_replaced {
            self.answered.on_replaced(leader.term(), lost, new);
        }
        is_replaced
    }

    /// Kills a coordinator: some writes in progress finish, and no reply is sent.
    pub(crate) fn crash(&mut self, place: usize, dice: &mut Dice) {
        let node = &mut self.nodes[place];
        node.member = None;
        node.peers.clear();
        for _ in 0..dice.range(0, node.writes.len() as u64) {
            node.writes.pop_front().into_iter().for_each(|write| node.disk.apply(write));
        }
        node.writes.clear();
    }

    /// Transfers leadership away from a coordinator.
    pub(crate) fn hand_over(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        self.with(place, now, |member, time| {
            member.transfer_to_follower(time);
        })
    }

    /// Begins the shutdown of a coordinator.
    pub(crate) fn end(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        node.ends_since = node.ends_since.or(Some(now));
        self.with(place, now, |member, time| {
            member.retire(time);
        })
    }

    /// Whether the shutdown of a coordinator is complete.
    pub(crate) fn has_ended(&self, place: usize, now: Millis) -> bool {
        let node = &self.nodes[place];
        let (Some(since), Some(member)) = (node.ends_since, &node.member) else { return false };
        let leads = matches!(member.role(), Role::Leader { .. });
        let hands_over = leads && member.voters() > 1 && now < since + LEADER_TRANSFER_MS;
        let writes = !node.writes.is_empty() && now < since + GRACE_MS;
        node.is_stuck || !hands_over && !writes
    }
}
