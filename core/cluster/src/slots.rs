//! Assigns the slots of elastic jobs to ranks, and moves slots between ranks.
//!
//! A slot is a stream of the layout, so its rows do not depend on its owner. Ownership is durable and has a generation that
//! increases with each change. A rank that is still present first stops the slot, so that the next owner starts where the
//! rank stopped. The slots of a rank that sends no report for the lease time continue at their recorded positions. If the
//! rank had delivered further rows, it is rejected as superseded when it returns.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, Millis, SessionId};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerReport, ServiceError, SlotGrant, SlotPosition};

use crate::deal::{SlotRank, deal_slots};
use crate::records::Record;
use crate::state::job::TrackedJob;
use crate::{Cluster, Ready};

/// Exclusive upper bound on the rank numbers of an elastic job. The coordinator keeps state for each rank that has ever
/// reported.
pub(crate) const MAX_RANKS: u32 = 65_536;
/// Milliseconds between two checks of an elastic job's slots.
const SLOT_CHECK_INTERVAL_MS: Millis = 1_000;
/// Minimum time in milliseconds between two rebalances that are due to changed step times.
const MIN_REBALANCE_INTERVAL_MS: Millis = 10_000;

impl TrackedJob {
    /// Whether a claim belongs to the current owner of the slot.
    fn is_owned(&self, consumer: u32, session: SessionId, claim: &SlotPosition) -> bool {
        self.slots.get(claim.stream).is_some_and(|slot| {
            (slot.rank, slot.session, slot.generation) == (Some(consumer), session, claim.generation)
        })
    }

    /// Whether a rank has delivered rows of a slot after the position at which the slot moved to another rank.
    fn has_delivered_moved_rows(&self, claim: &SlotPosition) -> bool {
        let (Some(layout), Some(slot)) = (&self.layout, self.slots.get(claim.stream)) else {
            return false;
        };
        let position = layout.normalise(claim.stream, claim.position);
        claim.generation < slot.generation && slot.end_of(claim.generation).is_none_or(|end| position > end)
    }

    /// Returns the progress in the slots that a consumer owns, and records the slots that the consumer has stopped.
    pub(crate) fn take_claims(&mut self, report: &ConsumerReport) -> Vec<(u32, StreamPosition)> {
        let mut streams = Vec::new();
        // A report may contain the same claim several times.
        for claim in report.slots.claims.iter().take(self.slots.len()) {
            if !self.is_owned(report.consumer, report.session, claim) {
                continue;
            }
            if self.streams.position(claim.stream).is_some_and(|present| claim.position > present) {
                streams.push((claim.stream, claim.position));
            }
            if claim.stopped && self.slot_rebalance.stopped_slots.insert(claim.stream) {
                self.slot_rebalance.request();
            }
        }
        streams
    }

    /// Returns the slots in a consumer's plan.
    pub(crate) fn grants(&self, number: u32, session: SessionId) -> Vec<SlotGrant> {
        let grant = |stream: u32| {
            let slot = self.slots.get(stream).filter(|slot| slot.session == session)?;
            let target = self.slot_rebalance.targets.get(stream as usize);
            Some(SlotGrant {
                stream,
                generation: slot.generation,
                position: self.streams.position(stream)?,
                release: target.is_some_and(|target| *target != slot.rank),
            })
        };
        self.slots.of_rank(number).filter_map(grant).collect()
    }

    /// Returns the ranks that are live and not leaving.
    fn present_ranks(&self) -> Vec<SlotRank> {
        let present = self.consumers.iter().filter(|(_, consumer)| consumer.is_present);
        present
            .map(|(rank, consumer)| SlotRank { rank: *rank, slot_seconds: consumer.slot_ns as f64 / 1e9 })
            .collect()
    }

    /// Whether the first assignment of slots still waits for expected ranks.
    fn is_waiting_for_ranks(&mut self, present: usize, now: Millis, lease_ms: Millis) -> bool {
        if present > 0 {
            self.slot_rebalance.first_report_at.get_or_insert(now);
        }
        let is_new = self.slots.as_slice().iter().all(|slot| slot.generation == 0);
        let is_over =
            self.slot_rebalance.first_report_at.is_some_and(|first| now.saturating_sub(first) > lease_ms);
        is_new && present < (self.spec.consumers as usize).min(self.slots.len()) && !is_over
    }

    /// Chooses the next owner of each slot. Returns whether the choice has changed.
    fn choose_targets(&mut self, ranks: &[SlotRank], now: Millis) -> bool {
        let numbers: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let is_same =
            numbers == self.slot_rebalance.ranks && self.slot_rebalance.targets.len() == self.slots.len();
        if is_same && now.saturating_sub(self.slot_rebalance.dealt_at) < MIN_REBALANCE_INTERVAL_MS {
            return false;
        }
        let is_present = |rank: &Option<u32>| rank.is_some_and(|rank| numbers.contains(&rank));
        let targets = self.slot_rebalance.targets.iter().copied().chain(std::iter::repeat(None));
        let present: Vec<Option<u32>> = self
            .slots
            .as_slice()
            .iter()
            .zip(targets)
            .map(|(slot, target)| if is_present(&target) { target } else { slot.rank })
            .collect();
        let targets = deal_slots(ranks, &present);
        let has_changed = targets != self.slot_rebalance.targets;
        self.slot_rebalance.targets = targets;
        self.slot_rebalance.ranks = numbers;
        self.slot_rebalance.dealt_at = now;
        has_changed
    }

    /// Returns the slots that move now, by their next rank: slots without an owner, slots of lost ranks, and stopped slots.
    fn due_moves(&self, now: Millis, lease_ms: Millis) -> BTreeMap<Option<u32>, Vec<u32>> {
        let mut moves: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
        for ((stream, slot), target) in (0..).zip(self.slots.as_slice()).zip(&self.slot_rebalance.targets) {
            let owner = slot.rank.and_then(|rank| self.consumers.get(&rank));
            let is_held = owner.is_some_and(|owner| {
                let leaves = owner.is_leaving && now.saturating_sub(owner.last_seen) <= lease_ms;
                owner.session == slot.session && (owner.is_present || leaves)
            });
            let is_due =
                if is_held { self.slot_rebalance.stopped_slots.contains(&stream) } else { target.is_some() };
            if is_due {
                moves.entry(*target).or_default().push(stream);
            }
        }
        moves
    }
}

impl Cluster {
    /// Rejects a rank that has delivered rows which other ranks also deliver.
    pub(crate) fn check_claims(&self, job: &TrackedJob, report: &ConsumerReport) -> Result<(), ServiceError> {
        if !report.slots.claims.iter().any(|claim| job.has_delivered_moved_rows(claim)) {
            return Ok(());
        }
        Err(self.superseded_after_silence(report, &job.spec.name, "slots"))
    }

    /// Moves the slots of elastic jobs with changed ranks or slots.
    pub(crate) fn deal_slots(&mut self, due: &BTreeSet<JobId>, ready: &mut Ready) {
        for id in due {
            let is_due = |job: &TrackedJob| job.spec.elastic && job.slot_rebalance.due_at <= self.now;
            if self.jobs.get(id).is_some_and(|job| job.running_layout().is_some() && is_due(job)) {
                self.deal_slots_of(*id, ready);
            }
        }
    }

    fn deal_slots_of(&mut self, id: JobId, ready: &mut Ready) {
        let (now, lease_ms) = (self.now, self.settings.consumer_lease_ms);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.examined_items += (job.slots.len() + job.consumers.len()) as u64;
        job.slot_rebalance.due_at = now + SLOT_CHECK_INTERVAL_MS;
        let ranks = job.present_ranks();
        if job.is_waiting_for_ranks(ranks.len(), now, lease_ms) {
            return;
        }
        let has_changed = job.choose_targets(&ranks, now);
        let moves = job.due_moves(now, lease_ms);
        if has_changed || !moves.is_empty() {
            job.touch_all_consumers();
        }
        for slot in moves.values().flatten() {
            job.slot_rebalance.stopped_slots.remove(slot);
        }
        for (rank, slots) in moves {
            let owner = rank.and_then(|rank| self.jobs[&id].consumers.get(&rank));
            let session = owner.map_or(SessionId(0), |owner| owner.session);
            self.record(Record::SlotsMoved { job: id, rank, session, slots }, ready);
        }
    }
}
