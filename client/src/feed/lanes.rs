//! The lanes of a feed, indexed by stream, by turn and by the number of splits that they hold, so that a batch costs the same
//! with one lane as with thousands.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use feedline_data::layout::{Layout, StreamPosition};

use super::stream_feed::StreamFeed;

/// Orders lanes by their next batches.
pub(super) type Turn = (StreamPosition, u32);

/// What the indexes hold of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexEntry {
    /// `None` where nothing more comes of the lane.
    turn: Option<Turn>,
    held: usize,
}

/// Lanes and their indexes. A lane changes only through [`Self::update`], which keeps the indexes true.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<StreamFeed>,
    entries: Vec<IndexEntry>,
    of_stream: HashMap<u32, usize>,
    turns: BTreeSet<(Turn, usize)>,
    /// Numbers of lanes by the number of complete splits that each holds.
    held: BTreeMap<usize, usize>,
}

impl Lanes {
    pub(super) fn new(lanes: Vec<StreamFeed>, layout: &Layout) -> Self {
        let mut all = Self::default();
        lanes.into_iter().for_each(|lane| all.push(lane, layout));
        all
    }

    pub(super) fn push(&mut self, lane: StreamFeed, layout: &Layout) {
        let (place, entry) = (self.lanes.len(), entry_of(&lane, layout));
        self.of_stream.insert(lane.stream, place);
        self.lanes.push(lane);
        self.entries.push(entry);
        self.add(place, entry);
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[StreamFeed] {
        &self.lanes
    }

    pub(super) fn get(&self, place: usize) -> &StreamFeed {
        &self.lanes[place]
    }

    pub(super) fn place_of(&self, stream: u32) -> Option<usize> {
        self.of_stream.get(&stream).copied()
    }

    pub(super) fn of_stream(&self, stream: u32) -> Option<&StreamFeed> {
        self.place_of(stream).map(|place| &self.lanes[place])
    }

    /// The lane that the next batch comes from; `None` when all are finished.
    pub(super) fn next_in_turn(&self) -> Option<usize> {
        self.turns.first().map(|(_, place)| *place)
    }

    /// The lanes that are not finished, in the order of their next batches.
    pub(super) fn in_order(&self) -> impl Iterator<Item = usize> + '_ {
        self.turns.iter().map(|(_, place)| *place)
    }

    /// The most complete splits that one lane holds.
    pub(super) fn most_held(&self) -> usize {
        self.held.last_key_value().map_or(0, |(held, _)| *held)
    }

    /// Changes one lane.
    pub(super) fn update<R>(
        &mut self,
        place: usize,
        layout: &Layout,
        change: impl FnOnce(&mut StreamFeed) -> R,
    ) -> R {
        let result = change(&mut self.lanes[place]);
        let entry = entry_of(&self.lanes[place], layout);
        if entry != self.entries[place] {
            self.remove(place, self.entries[place]);
            self.entries[place] = entry;
            self.add(place, entry);
        }
        result
    }

    /// Keeps the lanes for which `keep` holds.
    pub(super) fn retain(&mut self, layout: &Layout, keep: impl FnMut(&StreamFeed) -> bool) {
        let before = self.lanes.len();
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.retain(keep);
        if lanes.len() == before {
            self.lanes = lanes;
        } else {
            *self = Self::new(lanes, layout);
        }
    }

    fn add(&mut self, place: usize, entry: IndexEntry) {
        if let Some(turn) = entry.turn {
            self.turns.insert((turn, place));
        }
        *self.held.entry(entry.held).or_default() += 1;
    }

    fn remove(&mut self, place: usize, entry: IndexEntry) {
        if let Some(turn) = entry.turn {
            self.turns.remove(&(turn, place));
        }
        if let Some(lanes) = self.held.get_mut(&entry.held) {
            *lanes -= 1;
            if *lanes == 0 {
                self.held.remove(&entry.held);
            }
        }
    }
}

fn entry_of(lane: &StreamFeed, layout: &Layout) -> IndexEntry {
    IndexEntry { turn: (!lane.is_over()).then(|| lane.turn(layout)), held: lane.held_complete() }
}
