//! Slots of an elastic job: lanes that come and go as the coordinator deals them to ranks.
//!
//! A lane stops where its slot is wanted for another rank, or was given to one. What was delivered is said together with that
//! it stopped; it is forgotten once a plan that answers this has it no more. It never goes on in the same generation, so
//! that a report which arrives late can do no harm.

use std::collections::BTreeSet;

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{SlotGrant, SlotPosition, SlotReport};

use super::Feed;
use super::streams::StreamFeed;

/// The weight of the latest batch in the mean time of a slot's batch is one in so many.
const SMOOTHING: u64 = 8;

/// What an elastic job's feed knows beside its lanes.
#[derive(Debug, Default)]
pub(super) struct FeedSlots {
    /// Whether a plan has said that the job is elastic.
    pub(super) is_elastic: bool,
    leaving: bool,
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
        let claims: Vec<SlotPosition> = self.lanes.iter().map(claim).collect();
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
        let grant_of = |stream: u32| grants.iter().find(|grant| grant.stream == stream);
        let mut stop = Vec::new();
        for lane in &mut self.lanes {
            match grant_of(lane.stream).filter(|grant| grant.generation == lane.generation) {
                Some(grant) => lane.is_wanted |= grant.release,
                // Others may have it already: whether this rank has gone too far is for the coordinator to say.
                None => stop.push(lane.stream),
            }
        }
        stop.into_iter().for_each(|stream| self.stop_lane(stream));
        let is_over = |lane: &StreamFeed| {
            let is_own = grant_of(lane.stream).is_some_and(|grant| grant.generation == lane.generation);
            !is_own && heard.contains(&(lane.stream, lane.generation))
        };
        self.lanes.retain(|lane| !is_over(lane));
        let Some(layout) = &self.layout else { return };
        for grant in grants {
            if self.lanes.iter().all(|lane| lane.stream != grant.stream) {
                let mut lane = StreamFeed::new(layout, grant.stream, grant.position);
                (lane.generation, lane.is_wanted) = (grant.generation, grant.release);
                self.lanes.push(lane);
            }
        }
        if self.slots.leaving {
            // Those that were given to it meanwhile go back as well.
            return self.stop_all();
        }
        self.stop_wanted();
    }

    /// The job has ended: what others may have delivered meanwhile is not delivered any more.
    pub(super) fn end_slots(&mut self) {
        let open: Vec<u32> =
            self.lanes.iter().filter(|lane| !lane.assembler.is_finished()).map(|lane| lane.stream).collect();
        for stream in open {
            self.forget_fetches_of(stream);
            self.lanes.retain(|lane| lane.stream != stream);
        }
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
        let Some(layout) = &self.layout else { return };
        let last = self.slots.last;
        let is_between = |lane: &&StreamFeed| last.is_none_or(|last| lane.place_in_order(layout) > last);
        let wanted = self.lanes.iter().filter(|lane| lane.is_wanted && !lane.is_stopped);
        let stop: Vec<u32> = wanted.filter(is_between).map(|lane| lane.stream).collect();
        stop.into_iter().for_each(|stream| self.stop_lane(stream));
    }

    fn stop_all(&mut self) {
        let streams: Vec<u32> = self.lanes.iter().map(|lane| lane.stream).collect();
        streams.into_iter().for_each(|stream| self.stop_lane(stream));
    }

    fn stop_lane(&mut self, stream: u32) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.stream == stream && !lane.is_stopped) else {
            return;
        };
        lane.is_stopped = true;
        self.forget_fetches_of(stream);
        self.reports.ask_at_once();
    }

    fn forget_fetches_of(&mut self, stream: u32) {
        let splits: Vec<SplitRef> =
            self.splits.keys().filter(|split| split.stream == stream).copied().collect();
        for split in splits {
            let bytes = self.splits.get(&split).map_or(0, |fetch| fetch.buffered_bytes);
            self.forget_buffered(split, bytes);
            self.splits.remove(&split);
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
            self.lanes.iter().filter(|lane| !lane.is_stopped).map(|lane| lane.stream).collect();
        slots.sort_unstable();
        slots
    }

    /// The user took so long for a batch.
    pub(super) fn add_slot_time(&mut self, ns: u64) {
        let next = self.layout.as_ref().zip(self.next_lane());
        let next = next.map(|(layout, place)| self.lanes[place].place_in_order(layout));
        self.slots.time.add(ns, next.is_none() || next > self.slots.last);
    }

    /// The user takes so long for a batch.
    pub(crate) fn set_slot_time(&mut self, ns: u64) {
        self.slots.time = SlotTime { ns, is_given: true };
    }
}
