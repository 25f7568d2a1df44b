//! Slots of an elastic job: lanes that come and go as the coordinator deals them to ranks.
//!
//! A lane stops where its slot is wanted for another rank, or was given to one. What was delivered is said together with that
//! it stopped; it is forgotten once a plan that answers this has it no more. It never goes on in the same generation, so
//! that a report which arrives late can do no harm.

use std::collections::{BTreeSet, HashMap};

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{SlotGrant, SlotPosition, SlotReport};

use super::Feed;
use super::stream_feed::StreamFeed;

/// The weight of the latest batch in the mean time of a slot's batch is one in so many.
const SMOOTHING: u64 = 8;

/// What an elastic job's feed knows beside its lanes.
#[derive(Debug, Default)]
pub(super) struct FeedSlots {
    /// Whether a plan has said that the job is elastic.
    pub(super) is_elastic: bool,
    leaving: bool,
    /// Whether a slot that is wanted for another rank has not stopped.
    has_wanted: bool,
    /// Whether the coordinator has heard that it leaves.
    has_said_leaving: bool,
    /// Slots and generations whose stop the coordinator heard with the report that was answered last.
    heard: BTreeSet<(u32, u64)>,
    /// Where the batch that was delivered last began.
    last: Option<StreamPosition>,
    time: SlotTime,
}

/// How long the user takes for a batch of one slot.
#[derive(Debug, Default)]
struct SlotTime {
    ns: u64,
    /// Whether the user says so.
    is_given: bool,
}

impl SlotTime {
    /// Behind the last batch of a step ranks wait for each other, so such a time tells no more than a bound.
    fn add(&mut self, ns: u64, ends_step: bool) {
        if self.is_given {
            return;
        }
        self.ns = match self.ns {
            0 => ns,
            known if ends_step => known.min(ns),
            known => (known * (SMOOTHING - 1) + ns) / SMOOTHING,
        };
    }
}

/// What a report said of slots.
#[derive(Debug, Default)]
pub(super) struct SentSlots {
    stopped: BTreeSet<(u32, u64)>,
    leaving: bool,
}

impl Feed {
    /// What is reported of slots.
    pub(super) fn slot_report(&self) -> (SlotReport, SentSlots) {
        let leaving = self.slots.leaving;
        let Some(layout) = self.layout.as_ref().filter(|_| self.slots.is_elastic) else {
            return (
                SlotReport { leaving, ..SlotReport::default() },
                SentSlots { leaving, ..Default::default() },
            );
        };
        let claim = |lane: &StreamFeed| SlotPosition {
            stream: lane.stream,
            generation: lane.generation,
            position: lane.position(layout),
            stopped: lane.is_stopped,
        };
        let claims: Vec<SlotPosition> = self.lanes.as_slice().iter().map(claim).collect();
        let stopped = claims.iter().filter(|claim| claim.stopped);
        let stopped = stopped.map(|claim| (claim.stream, claim.generation)).collect();
        (SlotReport { claims, leaving, slot_ns: self.slots.time.ns }, SentSlots { stopped, leaving })
    }

    /// A report was answered.
    pub(super) fn on_slots_answered(&mut self, said: &SentSlots) {
        self.slots.heard.clone_from(&said.stopped);
        self.slots.has_said_leaving |= said.leaving;
    }

    /// Makes the lanes those that the plan has.
    pub(super) fn reconcile(&mut self, grants: &[SlotGrant]) {
        self.slots.is_elastic = true;
        let heard = std::mem::take(&mut self.slots.heard);
        let Some(layout) = self.layout.clone() else { return };
        let by_stream: HashMap<u32, &SlotGrant> = grants.iter().map(|grant| (grant.stream, grant)).collect();
        let own_grant = |lane: &StreamFeed| {
            by_stream.get(&lane.stream).filter(|grant| grant.generation == lane.generation).copied()
        };
        for place in 0..self.lanes.len() {
            let lane = self.lanes.get(place);
            match own_grant(lane) {
                Some(grant) if grant.release => {
                    self.lanes.update(place, &layout, |lane| lane.is_wanted = true)
                }
                Some(_) => {}
                // Others may have it already: whether this rank has gone too far is for the coordinator to say.
                None => self.stop_lane(place),
            }
        }
        let is_over =
            |lane: &StreamFeed| own_grant(lane).is_none() && heard.contains(&(lane.stream, lane.generation));
        self.lanes.retain(&layout, |lane| !is_over(lane));
        for grant in grants {
            if self.lanes.place_of(grant.stream).is_none() {
                let mut lane = StreamFeed::new(&layout, grant.stream, grant.position);
                (lane.generation, lane.is_wanted) = (grant.generation, grant.release);
                self.lanes.push(lane, &layout);
                self.extend_lane(self.lanes.len() - 1);
            }
        }
        self.slots.has_wanted = self.lanes.as_slice().iter().any(|lane| lane.is_wanted && !lane.is_stopped);
        if self.slots.leaving {
            // Those that were given to it meanwhile go back as well.
            return self.stop_all();
        }
        self.stop_wanted();
    }

    /// The job has ended: what others may have delivered meanwhile is not delivered any more.
    pub(super) fn end_slots(&mut self) {
        let Some(layout) = self.layout.clone() else { return };
        for place in 0..self.lanes.len() {
            if !self.lanes.get(place).assembler.is_finished() {
                self.forget_fetches_of(place);
            }
        }
        self.lanes.retain(&layout, |lane| lane.assembler.is_finished());
    }

    /// Notes where a delivered batch began, and stops at slots that are wanted for others.
    pub(super) fn on_slot_delivered(&mut self, began: StreamPosition) {
        if self.slots.is_elastic {
            self.slots.last = Some(began);
            self.stop_wanted();
        }
    }

    /// Stops lanes whose slots are wanted for others, but not in the midst of a step: other slots of this rank may be behind or
    /// before it then.
    fn stop_wanted(&mut self) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.slots.has_wanted) else { return };
        let last = self.slots.last;
        let is_between = |lane: &StreamFeed| last.is_none_or(|last| lane.place_in_order(layout) > last);
        let wanted = self.lanes.as_slice().iter().enumerate();
        let wanted: Vec<(usize, bool)> = wanted
            .filter(|(_, lane)| lane.is_wanted && !lane.is_stopped)
            .map(|(place, lane)| (place, is_between(lane)))
            .collect();
        self.slots.has_wanted = wanted.iter().any(|(_, is_between)| !is_between);
        let stop = wanted.into_iter().filter(|(_, is_between)| *is_between);
        stop.for_each(|(place, _)| self.stop_lane(place));
    }

    fn stop_all(&mut self) {
        (0..self.lanes.len()).for_each(|place| self.stop_lane(place));
    }

    fn stop_lane(&mut self, place: usize) {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.lanes.get(place).is_stopped) else { return };
        self.lanes.update(place, layout, |lane| lane.is_stopped = true);
        self.forget_fetches_of(place);
        self.reports.ask_at_once();
    }

    fn forget_fetches_of(&mut self, place: usize) {
        let splits: Vec<SplitRef> =
            self.lanes.get(place).assembler.progress().map(|(split, _)| split).collect();
        for split in splits {
            let bytes = self.fetches.get(split).map_or(0, |fetch| fetch.buffered_bytes);
            self.forget_buffered(split, bytes);
            self.fetches.remove(split);
        }
    }

    /// The rank leaves: it delivers nothing more.
    pub(crate) fn leave(&mut self) {
        self.slots.leaving = true;
        if self.slots.is_elastic {
            self.stop_all();
        }
        self.reports.ask_at_once();
    }

    /// Whether the coordinator knows that it has left, and has its slots.
    pub(crate) fn has_left(&self) -> bool {
        let has_slots = self.slots.is_elastic && !self.lanes.is_empty();
        self.state.is_ended() || (self.slots.has_said_leaving && !has_slots)
    }

    /// Whether slots may come where there are none.
    pub(super) fn may_get_slots(&self) -> bool {
        self.slots.is_elastic && !self.slots.leaving
    }

    /// Slots that it delivers.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let mut slots: Vec<u32> =
            self.lanes.as_slice().iter().filter(|lane| !lane.is_stopped).map(|lane| lane.stream).collect();
        slots.sort_unstable();
        slots
    }

    /// The user took so long for a batch.
    pub(super) fn add_slot_time(&mut self, ns: u64) {
        let next = self.layout.as_ref().zip(self.lanes.next_in_turn());
        let next = next.map(|(layout, place)| self.lanes.get(place).place_in_order(layout));
        self.slots.time.add(ns, next.is_none() || next > self.slots.last);
    }

    /// The user takes so long for a batch.
    pub(crate) fn set_slot_time(&mut self, ns: u64) {
        self.slots.time = SlotTime { ns, is_given: true };
    }
}
