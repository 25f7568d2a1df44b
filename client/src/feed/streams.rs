//! Lanes: the streams of a consumer, each with its assembler, and which of them is next.

use feedline_data::consumer::Assembler;
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::MOST_WANTED;
use feedline_data::pipeline::Remainder;

use super::Feed;
use super::lanes::Lanes;
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
    pub(super) fn is_over(&self) -> bool {
        self.is_stopped || self.assembler.is_finished()
    }

    /// When its next batch is due, compared with other lanes.
    pub(super) fn turn(&self, layout: &Layout) -> (StreamPosition, u32) {
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
    /// Lets a lane of a deterministic job expect the splits that come next, which may then be fetched.
    pub(super) fn extend_lane(&mut self, place: usize) {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.relaxed) else { return };
        let ahead = self.settings.splits_ahead as usize;
        self.lanes.update(place, layout, |lane| {
            if !lane.is_stopped {
                lane.extend(layout, ahead);
            }
        });
        let missing = self.lanes.get(place).assembler.missing().take(ahead).map(|(split, _)| split);
        self.starts.ready.extend(missing.filter(|split| self.fetches.get(*split).is_none()));
    }

    /// Ends the lane of a relaxed job where nothing follows what is held, and all of that has arrived or was delivered: its
    /// last rows may go.
    pub(super) fn end_exhausted(&mut self) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.identity.relaxed && self.exhausted) else {
            return;
        };
        for place in 0..self.lanes.len() {
            let assembler = &self.lanes.get(place).assembler;
            let arrived = |split: &SplitRef| {
                let is_here = assembler.arrived(*split).is_some() && assembler.is_complete(*split);
                is_here || self.reports.is_done(*split)
            };
            if self.planned.keys().all(arrived) {
                self.lanes.update(place, layout, StreamFeed::end);
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
        let (lane, layout) = (self.lanes.get(place), self.layout.as_ref()?);
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
    pub(super) fn missing_of<'a>(
        &'a self,
        lane: &'a StreamFeed,
    ) -> impl Iterator<Item = (SplitRef, u32)> + 'a {
        let planned = self.identity.relaxed.then_some(&self.planned).into_iter().flatten();
        let unseen = planned.filter(|(split, _)| self.is_unseen(lane, **split));
        lane.assembler.missing().chain(unseen.map(|(split, (from, _))| (*split, *from)))
    }

    /// Whether nothing of a split of a relaxed job has arrived.
    fn is_unseen(&self, lane: &StreamFeed, split: SplitRef) -> bool {
        lane.assembler.arrived(split).is_none() && !self.reports.is_done(split)
    }

    /// The offset to fetch a split from; `None` where it is not wanted, or has arrived.
    pub(super) fn missing_from(&self, split: SplitRef) -> Option<u32> {
        let lane = self.lanes.of_stream(split.stream).filter(|lane| !lane.is_over())?;
        match lane.assembler.arrived(split) {
            Some(from) => (!lane.assembler.is_complete(split)).then_some(from),
            None if self.identity.relaxed && self.is_unseen(lane, split) => {
                self.planned.get(&split).map(|(from, _)| *from)
            }
            None => None,
        }
    }

    /// Relaxed mode: lets go of splits that the coordinator gave to another consumer. The others are fetched again
    /// from where their delivery stands.
    pub(super) fn drop_revoked(&mut self) {
        let Some(layout) = &self.layout else { return };
        let planned = &self.planned;
        self.fetches.retain(|split| planned.contains_key(&split));
        let Some(lane) = self.lanes.as_slice().first() else { return };
        let order: Vec<(SplitRef, u32)> = lane.assembler.progress().collect();
        if order.iter().all(|(split, _)| planned.contains_key(split)) {
            return;
        }
        tracing::warn!("the coordinator gave splits of this consumer to another; they are let go of");
        let mut lane = StreamFeed::relaxed(layout);
        for (split, offset) in order.into_iter().filter(|(split, _)| planned.contains_key(split)) {
            lane.assembler.expect(split, offset, false);
        }
        self.lanes = Lanes::new(vec![lane], layout);
        self.fetches.clear();
        self.forget_all_buffered();
    }
}
