//! The lanes of a feed: which splits each expects, what is missing of them, and when one can never go on.

use feedline_data::layout::SplitRef;
use feedline_data::messages::MOST_WANTED;

use super::Feed;
use super::lanes::Lanes;
use super::stream_feed::StreamFeed;

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
