//! The effects of a raft node: messages and writes, replies, and committed entries, which are compared between coordinators.

use std::sync::Arc;

use feedline_cluster::IndexToSave;
use feedline_data::ids::{JobId, Millis};
use feedline_data::messages::ServiceErrorKind;
use feedline_raft::{Effects, LogWrite, Message, RaftNode, ServingChange};

use super::{Coordinators, Outcome};
use crate::Fault;

impl Coordinators {
    pub(super) fn pass_on(&mut self, place: usize, now: Millis, outcome: &mut Outcome) -> Result<(), String> {
        loop {
            let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
            let effects = member.effects().map_err(|error| format!("coordinator {place}: {error}"))?;
            self.compare(place, outcome)?;
            let early = self.take_effects(place, now, effects, outcome)?;
            let time = self.now(place, now);
            match (early, &mut self.nodes[place].member) {
                (Some(number), Some(member)) => member.on_written(time, Some(number)),
                _ => return Ok(()),
            }
        }
    }

    /// The number of a write that an injected fault counts as durable.
    fn take_effects(
        &mut self,
        place: usize,
        now: Millis,
        effects: Effects,
        outcome: &mut Outcome,
    ) -> Result<Option<u64>, String> {
        let to = |message: &Message| self.nodes.iter().position(|node| node.id.get() == message.to);
        outcome.messages.extend(effects.messages.into_iter().filter_map(|it| Some((to(&it)?, it))));
        let early = effects.writes.iter().rev().find_map(LogWrite::number);
        outcome.writes += effects.writes.len();
        let node = &mut self.nodes[place];
        let term = node.member.as_ref().map_or(0, RaftNode::term);
        for (request, changed) in effects.membership_results {
            match changed {
                Ok(_) => outcome.changed.push((request, term)),
                Err(refusal) => outcome.is_refused |= refusal.kind == ServiceErrorKind::Invalid,
            }
        }
        node.writes.extend(effects.writes);
        let addressed = |(id, reply)| node.peers.remove(&id).map(|(peer, call)| (peer, call, reply));
        outcome.answers.extend(effects.replies.into_iter().filter_map(addressed));
        for IndexToSave { job, key, manifest, .. } in effects.manifests {
            self.manifests.insert(key, manifest);
            outcome.saves.push(job);
        }
        if let Some(ServingChange::Started { preparing, .. }) = effects.serving_change {
            self.begin_serving(place, now, &preparing)?;
        }
        Ok(early.filter(|_| self.fault == Fault::EarlyWrite))
    }

    fn begin_serving(
        &mut self,
        place: usize,
        now: Millis,
        preparing: &[(JobId, String)],
    ) -> Result<(), String> {
        self.serving_since = self.serving_since.max(now);
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        if let Some(other) = self.leaders.insert(member.term(), place).filter(|other| *other != place) {
            return Err(format!("{other} and {place} have both led in term {}", member.term()));
        }
        self.answered.check(member.term(), member.members())?;
        if let Some(cluster) = member.cluster_mut() {
            for (job, key) in preparing {
                if let Some(saved) = self.manifests.get(key) {
                    cluster.set_saved_index(*job, Some(Arc::clone(saved)).into());
                }
            }
        }
        Ok(())
    }

    /// Compares the applied entries of a coordinator with the entries of the other coordinators.
    fn compare(&mut self, place: usize, outcome: &mut Outcome) -> Result<(), String> {
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        for (index, records) in member.take_applied() {
            outcome.taken_back.extend(self.kept.take(place, index, records)?);
        }
        Ok(())
    }
}
