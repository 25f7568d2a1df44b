//! Where the consumer stood behind its last batches, for whoever wants to know where all consumers stand at one step.
//!
//! Kept where only rows tell that. Nothing is said of it before a plan asks, or the consumer ends. Of a step that it has not come to it
//! says where it will stand, as soon as enough has arrived to form its batches.

use feedline_data::consumer::RunKind;
use feedline_data::layout::Layout;
use feedline_data::messages::{ConsumerPlan, HistoryReport};
use feedline_data::position_history::{DeliveredRun, PositionHistory, StepId, StepLookup};
use tokio::time::{Duration, Instant};

use super::Feed;
use super::stream_feed::{StreamFeed, lane_in_turn};

/// Time between looks at whether enough has arrived.
const LOOK: Duration = Duration::from_millis(20);
/// Batches ahead of which a consumer that ends says where it would stand: ranks leave their loops some steps apart.
const FORESEEN_AT_END: u64 = 8;

/// What a feed keeps of where it stood.
#[derive(Debug, Default)]
pub(super) struct FeedHistory {
    /// `None` where steps follow from the layout, or nobody else is there to ask.
    kept: Option<PositionHistory>,
    asked: Vec<StepId>,
    /// Whether a plan has asked since something was said.
    is_open: bool,
    looked_at: Option<Instant>,
    /// What the next report says.
    told: Option<Box<PositionHistory>>,
    is_ending: bool,
    /// The user takes a batch ahead of its loop.
    is_ahead: bool,
    /// The user has asked for a batch since it took one, so its loop has had that.
    pub(super) is_asked_for_more: bool,
}

impl Feed {
    /// The streams are known, and nothing was delivered.
    pub(super) fn begin_marks(&mut self, plan_consumers: u32, is_elastic: bool) {
        let Some(layout) = &self.layout else { return };
        let is_of_use = plan_consumers > 1 && !self.identity.relaxed && !is_elastic;
        if is_of_use && layout.steps().is_none() && !layout.coordinated {
            let began =
                self.lanes.as_slice().iter().map(|lane| (lane.stream, lane.position(layout))).collect();
            self.marking.kept = Some(PositionHistory::begin(began));
        }
    }

    /// A run was taken from a lane.
    pub(super) fn note_run(&mut self, place: usize, kind: RunKind, epoch: u32) {
        let (Some(marks), Some(layout)) = (&mut self.marking.kept, &self.layout) else { return };
        marks.push(mark_of(self.lanes.as_slice(), place, kind, epoch, layout));
    }

    /// The user takes a batch ahead of its loop from now on, so the last one that it has taken was not had.
    pub(crate) fn set_ahead(&mut self) {
        self.marking.is_ahead = true;
    }

    /// Takes what a plan asks.
    pub(super) fn on_asked(&mut self, plan: &mut ConsumerPlan) {
        let asked = std::mem::take(&mut plan.asked);
        let marking = &mut self.marking;
        if marking.asked != asked {
            (marking.asked, marking.looked_at) = (asked, None);
        }
        // What was said may have been lost.
        marking.is_open = marking.kept.is_some() && !marking.asked.is_empty();
    }

    /// Looks whether what was asked can be said.
    pub(crate) fn look_at_asks(&mut self, now: Instant) {
        let marking = &mut self.marking;
        let is_early = marking.looked_at.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK);
        if !marking.is_open || is_early {
            return;
        }
        marking.looked_at = Some(now);
        let is_ahead = |marks: &PositionHistory, step: &StepId| marks.find(*step) == StepLookup::Ahead;
        let asked = std::mem::take(&mut self.marking.asked);
        let foreseen = self.foresee(|marks| asked.iter().any(|step| is_ahead(marks, step)));
        // One that can be told is, whatever becomes of others.
        if let Some(marks) = foreseen.filter(|marks| asked.iter().any(|step| !is_ahead(marks, step))) {
            self.marking.is_open = asked.iter().any(|step| is_ahead(&marks, step));
            self.marking.told = Some(Box::new(marks));
            self.reports.ask_at_once();
        }
        self.marking.asked = asked;
    }

    /// The consumer ends: the last report says where it stood, since it cannot be asked later.
    pub(crate) fn begin_end(&mut self) {
        let Some(had) = self.marking.kept.as_ref().map(PositionHistory::batches) else { return };
        self.marking.told = self.foresee(|marks| marks.batches() < had + FORESEEN_AT_END).map(Box::new);
        self.marking.is_ending = true;
        self.reports.on_ending();
    }

    /// What is reported of it.
    pub(super) fn mark_report(&mut self) -> HistoryReport {
        let marking = &mut self.marking;
        let marks = if marking.is_ending { marking.told.clone() } else { marking.told.take() };
        HistoryReport { marks, is_last: marking.is_ending }
    }

    /// The marks as they will be, as far as `goes_on` says and what has arrived tells. Nothing is taken.
    fn foresee(&self, mut goes_on: impl FnMut(&PositionHistory) -> bool) -> Option<PositionHistory> {
        let (mut marks, layout) = (self.marking.kept.clone()?, self.layout.as_ref()?);
        marks.foresee(u64::from(self.marking.is_ahead && !self.marking.is_asked_for_more));
        if self.lanes.next_in_turn().is_none() {
            marks.end();
        }
        if !goes_on(&marks) {
            return Some(marks);
        }
        let mut lanes = self.lanes.as_slice().to_vec();
        while goes_on(&marks) {
            let Some(place) = lane_in_turn(&lanes, layout) else {
                marks.end();
                break;
            };
            let Some(run) = lanes[place].assembler.next_run() else { break };
            marks.push(mark_of(&lanes, place, run.kind, run.epoch, layout));
            marks.foresee(u64::from(run.kind == RunKind::Batch));
            for lane in &mut lanes {
                lane.extend(layout, self.settings.splits_ahead as usize);
            }
        }
        Some(marks)
    }
}

fn mark_of(lanes: &[StreamFeed], place: usize, kind: RunKind, epoch: u32, layout: &Layout) -> DeliveredRun {
    let position = lanes[place].position(layout);
    DeliveredRun { lane: place as u32, position, batch_of: (kind == RunKind::Batch).then_some(epoch) }
}
