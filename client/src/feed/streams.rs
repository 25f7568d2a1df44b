//! Lanes: the streams of a consumer, each with its assembler, and which of them is next.

use std::collections::BTreeMap;

use feedline_data::consumer::Assembler;
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::MOST_WANTED;
use feedline_data::pipeline::Remainder;

use super::Feed;
use crate::pieces::PieceBytes;

/// One stream.
#[derive(Debug, Clone)]
pub(super) struct StreamFeed {
    pub(super) stream: u32,
    pub(super) assembler: Assembler<PieceBytes>,
    /// Deterministic mode: the split to expect next and the offset to begin at.
    next: Option<(SplitRef, u32)>,
    ended: bool,
    /// Elastic jobs: the generation in which the slot was got, whether it is wanted for another rank, and whether nothing more
    /// of it is delivered.
    pub(super) generation: u64,
    pub(super) is_wanted: bool,
    pub(super) is_stopped: bool,
}

impl StreamFeed {
    /// A stream of a deterministic job, from `position` on.
    pub(super) fn new(layout: &Layout, stream: u32, position: StreamPosition) -> Self {
        let mut lane = Self { next: layout.locate(stream, position), ..Self::relaxed_at(layout, stream) };
        if layout.owes_empty_step(stream, position) {
            lane.assembler.owe_step(position.epoch);
        }
        lane
    }

    /// The splits of a relaxed job, in the order in which they arrive.
    pub(super) fn relaxed(layout: &Layout) -> Self {
        Self::relaxed_at(layout, 0)
    }

    fn relaxed_at(layout: &Layout, stream: u32) -> Self {
        Self {
            stream,
            assembler: Assembler::new(layout.clone()),
            next: None,
            ended: false,
            generation: 0,
            is_wanted: false,
            is_stopped: false,
        }
    }

    /// The next undelivered row.
    pub(super) fn position(&self, layout: &Layout) -> StreamPosition {
        if let Some(epoch) = self.assembler.owed_epoch() {
            return StreamPosition { epoch, row: layout.stream_rows(self.stream) };
        }
        if let Some((split, offset)) = self.assembler.progress().next() {
            return layout.position_in(split, offset);
        }
        match self.next {
            Some((split, offset)) => layout.position_in(split, offset),
            None => StreamPosition { epoch: layout.epochs, row: 0 },
        }
    }

    /// Orders lanes: the epoch and first row of the next batch. A batch without rows at an epoch's end comes after the
    /// epoch's rows.
    pub(super) fn place_in_order(&self, layout: &Layout) -> StreamPosition {
        match self.assembler.owed_epoch() {
            Some(epoch) => StreamPosition { epoch, row: u64::MAX },
            None => self.position(layout),
        }
    }

    /// Whether nothing comes of it any more.
    fn is_over(&self) -> bool {
        self.is_stopped || self.assembler.is_finished()
    }

    /// When its next batch is due, compared with other lanes.
    fn turn(&self, layout: &Layout) -> (StreamPosition, u32) {
        (self.place_in_order(layout), self.stream)
    }

    /// Expects splits until `ahead` of them have not arrived.
    pub(super) fn extend(&mut self, layout: &Layout, ahead: usize) {
        let mut missing = self.assembler.missing().count();
        while missing < ahead
            && let Some((split, from)) = self.next
        {
            let following = layout.next_split(split);
            let last_of_epoch = following.is_none_or(|following| following.epoch != split.epoch);
            self.assembler.expect(split, from, last_of_epoch && layout.remainder != Remainder::Carry);
            self.next = following.map(|following| (following, 0));
            missing += 1;
        }
        if self.next.is_none() {
            self.end();
        }
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.assembler.end();
        }
    }

    /// Splits that have arrived in full and not been delivered in full.
    pub(super) fn held_complete(&self) -> usize {
        self.assembler.progress().count() - self.assembler.missing().count()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }
}

/// The lane that is furthest behind; `None` when all are finished.
pub(super) fn lane_in_turn(lanes: &[StreamFeed], layout: &Layout) -> Option<usize> {
    let open = lanes.iter().enumerate().filter(|(_, lane)| !lane.is_over());
    open.min_by_key(|(_, lane)| lane.turn(layout)).map(|(place, _)| place)
}

impl Feed {
    /// The lane that the next batch comes from: the one that is furthest behind. `None` when all are finished.
    pub(super) fn next_lane(&self) -> Option<usize> {
        lane_in_turn(&self.lanes, self.layout.as_ref()?)
    }

    /// The lanes that are not finished, in the order of their next batches.
    pub(super) fn lanes_in_order(&self) -> Vec<usize> {
        let Some(layout) = &self.layout else { return Vec::new() };
        let open = self.lanes.iter().enumerate().filter(|(_, lane)| !lane.is_over());
        let mut order: Vec<_> = open.map(|(place, lane)| (lane.turn(layout), place)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, place)| place).collect()
    }

    /// Lets each lane know of the splits that come next, and of its end.
    pub(super) fn extend_lanes(&mut self) {
        let Some(layout) = &self.layout else { return };
        if !self.identity.relaxed {
            for lane in self.lanes.iter_mut().filter(|lane| !lane.is_stopped) {
                lane.extend(layout, self.settings.splits_ahead as usize);
            }
            return;
        }
        // Nothing follows what is held, and all of that has arrived or was delivered: the last rows may go.
        let reports = &self.reports;
        for lane in &mut self.lanes {
            let arrived = |split: &SplitRef| {
                reports.is_done(*split)
                    || (lane.assembler.arrived(*split).is_some() && lane.assembler.is_complete(*split))
            };
            if self.exhausted && self.planned.keys().all(arrived) {
                lane.end();
            }
        }
    }

    /// What to do where the next batch of a lane will never be full. Where other consumers may use up the data of a relaxed job,
    /// after which the last rows go as they are, it only waits for them, and the log says so once.
    pub(super) fn never_full(&mut self, place: usize) -> Option<String> {
        let message = self.too_few_rows(place)?;
        if !self.identity.relaxed || self.consumers == 1 {
            return Some(message);
        }
        if !self.has_said_wait {
            self.has_said_wait = true;
            tracing::warn!("waiting until other consumers have used up the data: {message}");
        }
        None
    }

    /// What helps where as many splits as the coordinator tells of have arrived, and have too few rows for the next batch of a
    /// lane. None of them is done before the batch is, so that no others follow.
    fn too_few_rows(&self, place: usize) -> Option<String> {
        let (lane, layout) = (&self.lanes[place], self.layout.as_ref()?);
        if layout.coordinated {
            return None;
        }
        let (held, most) = (lane.held_complete(), self.most_splits);
        if most == 0 || held < most as usize {
            return None;
        }
        let (batch, rows) = (layout.batch_rows, lane.assembler.waiting_rows());
        let needed = match rows {
            0 => format!("more than {held}"),
            _ => format!("about {}", (u64::from(batch) * held as u64).div_ceil(u64::from(rows))),
        };
        let fewer = match self.identity.relaxed {
            _ if most >= MOST_WANTED => "",
            true => ", or open the job for fewer consumers",
            false => ", or open the job for fewer virtual consumers",
        };
        Some(format!(
            "a batch of {batch} rows takes {needed} splits of {} rows, since operators keep so few of them, and {most} may be held at once: \
             use a smaller batch, keep more rows{fewer}",
            layout.split_rows
        ))
    }

    /// Splits of a lane that have not arrived, most urgent first, each with the offset to fetch from.
    pub(super) fn missing_of(&self, lane: &StreamFeed) -> Vec<(SplitRef, u32)> {
        let mut missing: Vec<(SplitRef, u32)> = lane.assembler.missing().collect();
        if self.identity.relaxed {
            let unseen =
                |split: &SplitRef| lane.assembler.arrived(*split).is_none() && !self.reports.is_done(*split);
            missing.extend(
                self.planned
                    .iter()
                    .filter(|(split, _)| unseen(split))
                    .map(|(split, (from, _))| (*split, *from)),
            );
        }
        missing
    }

    /// Relaxed mode: lets go of splits that the coordinator gave to another consumer. The others are fetched again
    /// from where their delivery stands.
    pub(super) fn drop_revoked(&mut self) {
        let Some(layout) = &self.layout else { return };
        let planned = &self.planned;
        let Some(lane) = self.lanes.first_mut() else { return };
        let progress: BTreeMap<SplitRef, u32> = lane.assembler.progress().collect();
        self.splits.retain(|split, _| planned.contains_key(split));
        if progress.keys().all(|split| planned.contains_key(split)) {
            return;
        }
        tracing::warn!("the coordinator gave splits of this consumer to another; they are let go of");
        let order: Vec<(SplitRef, u32)> = lane.assembler.progress().collect();
        *lane = StreamFeed::relaxed(layout);
        for (split, offset) in order.into_iter().filter(|(split, _)| planned.contains_key(split)) {
            lane.assembler.expect(split, offset, false);
        }
        self.splits.clear();
        self.forget_all_buffered();
    }
}
