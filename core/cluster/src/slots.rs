//! Slots of elastic jobs: which rank has which, and how they change hands.
//!
//! A slot is a stream of the layout, so its rows are the same whoever has it. Who has it is durable, with a generation that
//! grows each time it is given to someone. A rank that is there is asked to stop at a slot before another gets it, so that the
//! other begins right where it ended. Slots of a rank that is silent for the lease time go on where the log has them; if
//! it had delivered more, it is told that it was superseded when it comes back.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, Millis, SessionId};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerReport, ServiceError, ServiceErrorKind, SlotGrant, SlotPosition};
use serde::{Deserialize, Serialize};

use super::consumers::TrackedConsumer;
use super::deal::{SlotRank, deal_slots};
use super::job::TrackedJob;

use super::records::Record;
use super::{Cluster, Ready};

/// Ranks of an elastic job are numbered below this: the coordinator keeps something of each that ever came.
pub(super) const MOST_RANKS: u32 = 65_536;
/// Generations of a slot whose beginnings are kept. Who was away for more is not known to have stopped in time.
const KEPT_BEGINNINGS: usize = 4;
/// Ranks that do not report are looked for as often as this.
const LOOK_MS: Millis = 1_000;
/// Slots are dealt anew for changed step times as often as this.
const RETIME_MS: Millis = 10_000;

/// Who has a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOwnership {
    /// The rank; `None` where nobody has it.
    pub rank: Option<u32>,
    /// The rank's session that has it.
    pub session: SessionId,
    /// Counts how often it was given to someone, or taken from everyone.
    pub generation: u64,
    /// Where it stood when the last generations began, the present one last.
    pub begins: Vec<StreamPosition>,
}

impl SlotOwnership {
    /// A slot that nobody has had yet.
    pub(super) fn unowned() -> Self {
        Self { rank: None, session: SessionId(0), generation: 0, begins: Vec::new() }
    }

    fn give(&mut self, rank: Option<u32>, session: SessionId, at: StreamPosition) {
        (self.rank, self.session) = (rank, session);
        self.generation += 1;
        self.begins.push(at);
        let past = self.begins.len().saturating_sub(KEPT_BEGINNINGS);
        self.begins.drain(..past);
    }

    /// Where a generation ended; `None` where it has not, or that is not kept.
    fn end_of(&self, generation: u64) -> Option<StreamPosition> {
        let back = usize::try_from(self.generation.checked_sub(generation)?).ok()?;
        self.begins.get(self.begins.len().checked_sub(back)?).copied()
    }
}

/// Soft state of an elastic job's dealing: comes back with the next reports.
#[derive(Debug, Default)]
pub(super) struct SlotRebalance {
    /// Who shall have each slot; empty until it was dealt in this life.
    targets: Vec<Option<u32>>,
    /// The ranks that it was dealt to, and when.
    ranks: BTreeSet<u32>,
    dealt_at: Millis,
    /// Slots at which their present owners have stopped.
    stopped: BTreeSet<u32>,
    /// When a rank was there first.
    first_at: Option<Millis>,
    /// When to look again; 0 is at once.
    look_at: Millis,
}

impl SlotRebalance {
    /// Ranks or slots have changed.
    pub(super) fn touch(&mut self) {
        self.look_at = 0;
    }
}

impl TrackedJob {
    pub(super) fn apply_moved(&mut self, rank: Option<u32>, session: SessionId, slots: &[u32]) {
        for slot in slots {
            let place = *slot as usize;
            if let (Some(found), Some(at)) = (self.slots.get_mut(place), self.streams.get(place)) {
                found.give(rank, session, *at);
            }
        }
    }

    /// Whether a claim is that of the slot's owner.
    fn is_own(&self, consumer: u32, session: SessionId, claim: &SlotPosition) -> bool {
        self.slots.get(claim.stream as usize).is_some_and(|slot| {
            (slot.rank, slot.session, slot.generation) == (Some(consumer), session, claim.generation)
        })
    }

    /// Whether a rank has delivered rows of a slot behind those with which it was given to others.
    fn has_gone_on(&self, claim: &SlotPosition) -> bool {
        let (Some(layout), Some(slot)) = (&self.layout, self.slots.get(claim.stream as usize)) else {
            return false;
        };
        let position = layout.normalise(claim.stream, claim.position);
        claim.generation < slot.generation && slot.end_of(claim.generation).is_none_or(|end| position > end)
    }

    /// Progress in slots that the consumer has; notes where it has stopped.
    pub(super) fn take_claims(&mut self, report: &ConsumerReport) -> Vec<(u32, StreamPosition)> {
        let mut streams = Vec::new();
        // What is said twice counts once.
        for claim in report.slots.claims.iter().take(self.slots.len()) {
            if !self.is_own(report.consumer, report.session, claim) {
                continue;
            }
            if claim.position > self.streams[claim.stream as usize] {
                streams.push((claim.stream, claim.position));
            }
            if claim.stopped && self.dealing.stopped.insert(claim.stream) {
                self.dealing.touch();
            }
        }
        streams
    }

    /// The slots of a consumer, as its plan has them.
    pub(super) fn grants(&self, number: u32, consumer: &TrackedConsumer) -> Vec<SlotGrant> {
        let own = (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.rank == Some(number) && slot.session == consumer.session);
        own.map(|(stream, slot)| SlotGrant {
            stream,
            generation: slot.generation,
            position: self.streams[stream as usize],
            release: self.dealing.targets.get(stream as usize).is_some_and(|target| *target != slot.rank),
        })
        .collect()
    }

    /// The ranks that are there and stay.
    fn ranks_here(&self) -> Vec<SlotRank> {
        let here = self.consumers.iter().filter(|(_, consumer)| consumer.is_here);
        here.map(|(rank, consumer)| SlotRank { rank: *rank, slot_seconds: consumer.slot_ns as f64 / 1e9 })
            .collect()
    }

    /// Whether slots are dealt for the first time, and not all ranks are there that were expected.
    fn waits_for_ranks(&mut self, here: usize, now: Millis, lease_ms: Millis) -> bool {
        if here > 0 {
            self.dealing.first_at.get_or_insert(now);
        }
        let is_new = self.slots.iter().all(|slot| slot.generation == 0);
        let is_over = self.dealing.first_at.is_some_and(|first| now.saturating_sub(first) > lease_ms);
        is_new && here < (self.spec.consumers as usize).min(self.slots.len()) && !is_over
    }

    /// Decides who shall have which slot; whether that changed.
    fn choose_targets(&mut self, ranks: &[SlotRank], now: Millis) -> bool {
        let numbers: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let is_same = numbers == self.dealing.ranks && self.dealing.targets.len() == self.slots.len();
        if is_same && now.saturating_sub(self.dealing.dealt_at) < RETIME_MS {
            return false;
        }
        let is_here = |rank: &Option<u32>| rank.is_some_and(|rank| numbers.contains(&rank));
        let targets = self.dealing.targets.iter().copied().chain(std::iter::repeat(None));
        let present: Vec<Option<u32>> = self
            .slots
            .iter()
            .zip(targets)
            .map(|(slot, target)| if is_here(&target) { target } else { slot.rank })
            .collect();
        let targets = deal_slots(ranks, &present);
        let has_changed = targets != self.dealing.targets;
        self.dealing.targets = targets;
        self.dealing.ranks = numbers;
        self.dealing.dealt_at = now;
        has_changed
    }

    /// Slots to give now, by who gets them: those of nobody, of ranks that are gone, and those at which their owners have stopped.
    fn due_moves(&self, now: Millis, lease_ms: Millis) -> BTreeMap<Option<u32>, Vec<u32>> {
        let mut moves: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
        for ((stream, slot), target) in (0..).zip(&self.slots).zip(&self.dealing.targets) {
            let owner = slot.rank.and_then(|rank| self.consumers.get(&rank));
            let is_held = owner.is_some_and(|owner| {
                let leaves = owner.is_leaving && now.saturating_sub(owner.last_seen) <= lease_ms;
                owner.session == slot.session && (owner.is_here || leaves)
            });
            let is_due = if is_held { self.dealing.stopped.contains(&stream) } else { target.is_some() };
            if is_due {
                moves.entry(*target).or_default().push(stream);
            }
        }
        moves
    }

    /// Ranks that have been silent for the lease time are gone, unless all have: then it may be the coordinator that was not there.
    pub(super) fn expire_ranks(&mut self, now: Millis, lease_ms: Millis) {
        let silent = |consumer: &TrackedConsumer| now.saturating_sub(consumer.last_seen) > lease_ms;
        let mut here = self.consumers.values().filter(|consumer| consumer.is_here);
        if here.all(silent) {
            return;
        }
        for consumer in self.consumers.values_mut().filter(|consumer| consumer.is_here && silent(consumer)) {
            consumer.is_here = false;
            self.dealing.touch();
        }
    }

    /// What is said of how many slots each rank has.
    pub(super) fn slot_owners(&self) -> Vec<(u32, u32)> {
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        for rank in self.slots.iter().filter_map(|slot| slot.rank) {
            *owners.entry(rank).or_default() += 1;
        }
        owners.into_iter().collect()
    }
}

impl Cluster {
    /// Whether a rank may go on: not where it has delivered what others have, too.
    pub(super) fn check_claims(&self, job: &TrackedJob, report: &ConsumerReport) -> Result<(), ServiceError> {
        if !report.slots.claims.iter().any(|claim| job.has_gone_on(claim)) {
            return Ok(());
        }
        Err(ServiceError::new(
            ServiceErrorKind::Superseded,
            format!(
                "consumer {} of job `{}` was silent for more than {} s and its slots went to others; start it again from its last checkpoint",
                report.consumer,
                job.spec.name,
                self.settings.consumer_lease_ms / 1_000
            ),
        ))
    }

    /// Deals the slots of elastic jobs whose ranks or slots have changed.
    pub(super) fn deal_slots(&mut self, ready: &mut Ready) {
        let now = self.now;
        let is_due =
            |job: &&TrackedJob| job.spec.elastic && job.dealing.look_at <= now && job.running().is_some();
        let due: Vec<JobId> = self.jobs.values().filter(is_due).map(|job| job.id).collect();
        for id in due {
            self.deal_slots_of(id, ready);
        }
    }

    fn deal_slots_of(&mut self, id: JobId, ready: &mut Ready) {
        let (now, lease_ms) = (self.now, self.settings.consumer_lease_ms);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.dealing.look_at = now + LOOK_MS;
        let ranks = job.ranks_here();
        if job.waits_for_ranks(ranks.len(), now, lease_ms) {
            return;
        }
        let has_changed = job.choose_targets(&ranks, now);
        let moves = job.due_moves(now, lease_ms);
        if has_changed || !moves.is_empty() {
            job.touch_all_consumers();
        }
        for slots in moves.values().flatten() {
            job.dealing.stopped.remove(slots);
        }
        for (rank, slots) in moves {
            let owner = rank.and_then(|rank| self.jobs[&id].consumers.get(&rank));
            let session = owner.map_or(SessionId(0), |owner| owner.session);
            self.record(Record::SlotsMoved { job: id, rank, session, slots }, ready);
        }
    }
}
