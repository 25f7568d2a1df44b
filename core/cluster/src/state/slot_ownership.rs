//! The owners of an elastic job's slots, and the positions at which the recent owners of each slot started.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::SessionId;
use feedline_data::layout::StreamPosition;
use serde::{Deserialize, Serialize};

/// Maximum number of recent generations of a slot whose start positions are stored. A rank of an older generation is assumed
/// to have delivered moved rows.
const MAX_STORED_GENERATIONS: usize = 4;

/// The owner of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOwnership {
    /// The rank; `None` for a slot without an owner.
    pub rank: Option<u32>,
    /// The session of the rank that owns the slot.
    pub session: SessionId,
    /// The number of ownership changes.
    pub generation: u64,
    /// The start positions of the recent generations, the current generation last.
    #[serde(rename = "begins")]
    pub start_positions: Vec<StreamPosition>,
}

impl SlotOwnership {
    /// Creates a slot that has never had an owner.
    pub(crate) fn unowned() -> Self {
        Self { rank: None, session: SessionId(0), generation: 0, start_positions: Vec::new() }
    }

    pub(crate) fn set_owner(&mut self, rank: Option<u32>, session: SessionId, at: StreamPosition) {
        (self.rank, self.session) = (rank, session);
        self.generation += 1;
        self.start_positions.push(at);
        let past = self.start_positions.len().saturating_sub(MAX_STORED_GENERATIONS);
        self.start_positions.drain(..past);
    }

    /// Returns the position at which a generation ended; `None` for the current generation and for generations that are too
    /// old.
    pub(crate) fn end_of(&self, generation: u64) -> Option<StreamPosition> {
        let back = usize::try_from(self.generation.checked_sub(generation)?).ok()?;
        self.start_positions.get(self.start_positions.len().checked_sub(back)?).copied()
    }
}

/// The owners of all slots, with an index by rank.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    slots: Vec<SlotOwnership>,
    by_rank: BTreeMap<u32, BTreeSet<u32>>,
}

impl SlotTable {
    pub(crate) fn new(slots: Vec<SlotOwnership>) -> Self {
        let mut by_rank: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (slot, rank) in (0..).zip(&slots).filter_map(|(slot, owner)| Some((slot, owner.rank?))) {
            by_rank.entry(rank).or_default().insert(slot);
        }
        Self { slots, by_rank }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&SlotOwnership> {
        self.slots.get(slot as usize)
    }

    pub(crate) fn as_slice(&self) -> &[SlotOwnership] {
        &self.slots
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slots that a rank owns.
    pub(crate) fn of_rank(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        self.by_rank.get(&rank).into_iter().flatten().copied()
    }

    /// The ranks that own slots, each with its number of slots.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_rank.iter().map(|(rank, slots)| (*rank, slots.len() as u32))
    }

    pub(crate) fn set_owner(&mut self, slot: u32, rank: Option<u32>, session: SessionId, at: StreamPosition) {
        let Some(owner) = self.slots.get_mut(slot as usize) else { return };
        if let Some(before) = owner.rank
            && let Some(slots) = self.by_rank.get_mut(&before)
        {
            slots.remove(&slot);
            if slots.is_empty() {
                self.by_rank.remove(&before);
            }
        }
        owner.set_owner(rank, session, at);
        if let Some(rank) = rank {
            self.by_rank.entry(rank).or_default().insert(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_indexed_by_rank() {
        let at = StreamPosition::default();
        let mut table = SlotTable::new(vec![SlotOwnership::unowned(); 3]);
        assert_eq!((table.len(), table.owners().count()), (3, 0));
        for (slot, rank) in [(0, Some(5)), (1, Some(5)), (2, Some(6)), (1, Some(6)), (0, None), (9, Some(1))]
        {
            table.set_owner(slot, rank, SessionId(1), at);
        }
        assert_eq!(table.owners().collect::<Vec<_>>(), [(6, 2)]);
        assert_eq!(table.of_rank(6).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.get(0).map(|slot| (slot.rank, slot.generation)), Some((None, 2)));
        let restored = SlotTable::new(table.as_slice().to_vec());
        assert_eq!(restored.owners().collect::<Vec<_>>(), [(6, 2)]);
    }

    #[test]
    fn the_last_four_generations_have_an_end() {
        let at = |row| StreamPosition { epoch: 0, row };
        let mut slot = SlotOwnership::unowned();
        assert_eq!((slot.generation, slot.end_of(0)), (0, None));
        for generation in 1..=6 {
            slot.set_owner(Some(generation as u32), SessionId(7), at(generation));
        }
        assert_eq!((slot.rank, slot.session, slot.generation), (Some(6), SessionId(7), 6));
        assert_eq!((slot.end_of(6), slot.end_of(7)), (None, None), "it has not ended");
        assert_eq!(
            [5, 4, 3, 2].map(|generation| slot.end_of(generation)),
            [6, 5, 4, 3].map(|row| Some(at(row)))
        );
        assert_eq!(slot.end_of(1), None, "its end is not kept");
    }
}
