//! Assigns the slots of an elastic job to its ranks. Faster ranks get more slots, so that the slowest rank finishes a step
//! as early as possible, and as few slots as possible change owners.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Minimum speedup of the slowest rank that justifies moving slots between current ranks.
const MIN_SPEEDUP: f64 = 1.1;

/// A rank that can own slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SlotRank {
    /// The number of the rank.
    pub rank: u32,
    /// Seconds per batch of one slot; 0 if unknown. An unknown time is replaced with the mean of the other ranks.
    pub slot_seconds: f64,
}

/// Assigns slots to ranks. `owners` contains the current owner of each slot; `None` or an unlisted rank means that the slot
/// has no owner. Returns the next owner of each slot, or `None` for all slots if there are no ranks.
///
/// Each rank receives at least one slot if there are enough slots. The result minimizes `max(slots × slot_seconds)` over the
/// ranks, and then the number of slots that change owners. If no rank has joined or left, slots move only if this maximum
/// falls by more than a tenth.
pub(crate) fn deal_slots(ranks: &[SlotRank], owners: &[Option<u32>]) -> Vec<Option<u32>> {
    if ranks.is_empty() {
        return vec![None; owners.len()];
    }
    let problem = AssignmentProblem::new(ranks, owners);
    let best = problem.fastest_counts();
    if problem.is_complete()
        && problem.slowest_seconds(&problem.owned) <= MIN_SPEEDUP * problem.slowest_seconds(&best)
    {
        return owners.to_vec();
    }
    problem.assign(owners, &problem.nearest_counts(problem.slowest_seconds(&best)))
}

/// The assignment problem with dense rank indexes. The rank with index `r` owns `owned[r]` slots.
struct AssignmentProblem {
    ranks: Vec<u32>,
    index_of: BTreeMap<u32, usize>,
    slot_seconds: Vec<f64>,
    owned: Vec<u64>,
    slots: u64,
    /// Minimum number of slots of each rank.
    min_slots: u64,
}

impl AssignmentProblem {
    fn new(ranks: &[SlotRank], owners: &[Option<u32>]) -> Self {
        let index_of: BTreeMap<u32, usize> =
            ranks.iter().enumerate().map(|(index, rank)| (rank.rank, index)).collect();
        let known: Vec<f64> = ranks.iter().map(|rank| rank.slot_seconds).filter(|it| *it > 0.0).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let slot_seconds =
            ranks.iter().map(|rank| if rank.slot_seconds > 0.0 { rank.slot_seconds } else { mean }).collect();
        let mut owned = vec![0; ranks.len()];
        for owner in owners.iter().flatten() {
            if let Some(index) = index_of.get(owner) {
                owned[*index] += 1;
            }
        }
        Self {
            ranks: ranks.iter().map(|rank| rank.rank).collect(),
            index_of,
            slot_seconds,
            owned,
            slots: owners.len() as u64,
            min_slots: u64::from(owners.len() >= ranks.len()),
        }
    }

    /// Whether every slot has an owner and every rank has its minimum number of slots.
    fn is_complete(&self) -> bool {
        self.owned.iter().sum::<u64>() == self.slots
            && self.owned.iter().all(|count| *count >= self.min_slots)
    }

    fn rank_seconds(&self, index: usize, count: u64) -> f64 {
        count as f64 * self.slot_seconds[index]
    }

    fn slowest_seconds(&self, counts: &[u64]) -> f64 {
        counts.iter().enumerate().map(|(index, count)| self.rank_seconds(index, *count)).fold(0.0, f64::max)
    }

    /// Returns the slot counts that minimize the time of the slowest rank: each slot goes to the rank that finishes it
    /// first.
    fn fastest_counts(&self) -> Vec<u64> {
        let mut counts = vec![self.min_slots; self.ranks.len()];
        self.fill(&mut counts, f64::INFINITY);
        counts
    }

    /// Assigns each remaining slot to the rank that finishes it first, if that rank stays within `limit` seconds.
    fn fill(&self, counts: &mut [u64], limit: f64) {
        let after =
            |index: usize, count: u64| Reverse((order_key(self.rank_seconds(index, count + 1)), index));
        let mut heap: BinaryHeap<_> =
            counts.iter().enumerate().map(|(index, count)| after(index, *count)).collect();
        let mut left = self.slots - counts.iter().sum::<u64>().min(self.slots);
        while left > 0
            && let Some(Reverse((time, index))) = heap.pop()
        {
            if f64::from_bits(time) > limit {
                continue;
            }
            counts[index] += 1;
            left -= 1;
            heap.push(after(index, counts[index]));
        }
    }

    /// Returns slot counts for which every rank stays within `limit` seconds and as few slots as possible move.
    fn nearest_counts(&self, limit: f64) -> Vec<u64> {
        let most = |index: usize| {
            // Rounding may be off by one in either direction.
            let about = (limit / self.slot_seconds[index]) as u64 + 1;
            let fits = |count: &u64| self.rank_seconds(index, *count) <= limit;
            (0..=about).rev().take(3).find(fits).unwrap_or(0).max(self.min_slots)
        };
        let mut counts: Vec<u64> = self
            .owned
            .iter()
            .enumerate()
            .map(|(index, now)| (*now).clamp(self.min_slots, most(index)))
            .collect();
        // Ranks without slots received one slot each. The slowest ranks give up the same number of slots.
        let mut heap: BinaryHeap<(u64, usize)> = counts
            .iter()
            .enumerate()
            .map(|(index, count)| (order_key(self.rank_seconds(index, *count)), index))
            .collect();
        let mut over = counts.iter().sum::<u64>().saturating_sub(self.slots);
        while over > 0
            && let Some((_, index)) = heap.pop()
        {
            if counts[index] > self.min_slots {
                counts[index] -= 1;
                over -= 1;
                heap.push((order_key(self.rank_seconds(index, counts[index])), index));
            }
        }
        self.fill(&mut counts, limit);
        counts
    }

    /// Assigns slots according to the counts. A rank with too many slots gives up its last slots.
    fn assign(&self, owners: &[Option<u32>], counts: &[u64]) -> Vec<Option<u32>> {
        let mut room = counts.to_vec();
        let mut assigned: Vec<Option<u32>> = owners
            .iter()
            .map(|owner| {
                let index = *self.index_of.get(&(*owner)?)?;
                let has_room = room[index] > 0;
                room[index] -= u64::from(has_room);
                owner.filter(|_| has_room)
            })
            .collect();
        let mut index = 0;
        for owner in assigned.iter_mut().filter(|owner| owner.is_none()) {
            // Distribute the free slots round-robin over the ranks that need slots.
            let Some(next) =
                (0..room.len()).map(|step| (index + step) % room.len()).find(|index| room[*index] > 0)
            else {
                break;
            };
            room[next] -= 1;
            *owner = Some(self.ranks[next]);
            index = next + 1;
        }
        assigned
    }
}

/// Converts a non-negative time to an integer. The conversion preserves the order.
fn order_key(time: f64) -> u64 {
    time.to_bits()
}

#[cfg(test)]
mod tests;
