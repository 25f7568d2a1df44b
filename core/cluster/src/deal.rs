//! Assigns the slots of an elastic job to its ranks. Faster ranks get more slots, so that the slowest rank finishes a step as
//! early as possible, and as few slots as possible change their owners.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Slots of present ranks move only if this speeds up the slowest rank by more than this factor.
const WORTH_MOVING: f64 = 1.1;

/// A rank that can own slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SlotRank {
    /// The number of the rank.
    pub rank: u32,
    /// Seconds for a batch of one slot; 0 if unknown, which counts as the mean of the other ranks.
    pub slot_seconds: f64,
}

/// Assigns slots to ranks. `present` contains the owner of each slot; `None`, or a rank that is not listed, is not an owner. The
/// result contains the next owner of each slot, `None` only without ranks.
///
/// Each rank gets at least one slot if there are enough. The result minimises `max(slots × slot_seconds)` over the ranks, and
/// then the number of slots that change their owner. If no rank has joined or left, nothing moves unless this maximum falls by
/// more than a tenth.
pub(crate) fn deal_slots(ranks: &[SlotRank], present: &[Option<u32>]) -> Vec<Option<u32>> {
    if ranks.is_empty() {
        return vec![None; present.len()];
    }
    let problem = Problem::new(ranks, present);
    let best = problem.fastest();
    if problem.is_complete() && problem.slowest(&problem.now) <= WORTH_MOVING * problem.slowest(&best) {
        return present.to_vec();
    }
    problem.place(present, &problem.nearest(problem.slowest(&best)))
}

/// The problem with dense indexes: rank `r` owns `now[r]` slots.
struct Problem {
    ranks: Vec<u32>,
    place_of: BTreeMap<u32, usize>,
    seconds: Vec<f64>,
    now: Vec<u64>,
    slots: u64,
    /// Least slots of each rank.
    least: u64,
}

impl Problem {
    fn new(ranks: &[SlotRank], present: &[Option<u32>]) -> Self {
        let place_of: BTreeMap<u32, usize> =
            ranks.iter().enumerate().map(|(place, rank)| (rank.rank, place)).collect();
        let known: Vec<f64> = ranks.iter().map(|rank| rank.slot_seconds).filter(|it| *it > 0.0).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let seconds =
            ranks.iter().map(|rank| if rank.slot_seconds > 0.0 { rank.slot_seconds } else { mean }).collect();
        let mut now = vec![0; ranks.len()];
        for owner in present.iter().flatten() {
            if let Some(place) = place_of.get(owner) {
                now[*place] += 1;
            }
        }
        Self {
            ranks: ranks.iter().map(|rank| rank.rank).collect(),
            place_of,
            seconds,
            now,
            slots: present.len() as u64,
            least: u64::from(present.len() >= ranks.len()),
        }
    }

    /// Whether every slot has an owner and every rank has its least number of slots.
    fn is_complete(&self) -> bool {
        self.now.iter().sum::<u64>() == self.slots && self.now.iter().all(|count| *count >= self.least)
    }

    fn time(&self, place: usize, count: u64) -> f64 {
        count as f64 * self.seconds[place]
    }

    fn slowest(&self, counts: &[u64]) -> f64 {
        counts.iter().enumerate().map(|(place, count)| self.time(place, *count)).fold(0.0, f64::max)
    }

    /// Numbers of slots that minimise the time of the slowest rank: each slot goes to the rank that finishes it first.
    fn fastest(&self) -> Vec<u64> {
        let mut counts = vec![self.least; self.ranks.len()];
        self.fill(&mut counts, f64::INFINITY);
        counts
    }

    /// Assigns the remaining slots, each to the rank that finishes it first within `limit`.
    fn fill(&self, counts: &mut [u64], limit: f64) {
        let after = |place: usize, count: u64| Reverse((order_key(self.time(place, count + 1)), place));
        let mut heap: BinaryHeap<_> =
            counts.iter().enumerate().map(|(place, count)| after(place, *count)).collect();
        let mut left = self.slots - counts.iter().sum::<u64>().min(self.slots);
        while left > 0
            && let Some(Reverse((time, place))) = heap.pop()
        {
            if f64::from_bits(time) > limit {
                continue;
            }
            counts[place] += 1;
            left -= 1;
            heap.push(after(place, counts[place]));
        }
    }

    /// Numbers of slots with which no rank needs longer than `limit` and as few slots as possible move.
    fn nearest(&self, limit: f64) -> Vec<u64> {
        let most = |place: usize| {
            // Rounding may be off by one in either direction.
            let about = (limit / self.seconds[place]) as u64 + 1;
            let fits = |count: &u64| self.time(place, *count) <= limit;
            (0..=about).rev().take(3).find(fits).unwrap_or(0).max(self.least)
        };
        let mut counts: Vec<u64> =
            self.now.iter().enumerate().map(|(place, now)| (*now).clamp(self.least, most(place))).collect();
        // Each rank without slots got one. The slowest ranks give up as many.
        let mut heap: BinaryHeap<(u64, usize)> = counts
            .iter()
            .enumerate()
            .map(|(place, count)| (order_key(self.time(place, *count)), place))
            .collect();
        let mut over = counts.iter().sum::<u64>().saturating_sub(self.slots);
        while over > 0
            && let Some((_, place)) = heap.pop()
        {
            if counts[place] > self.least {
                counts[place] -= 1;
                over -= 1;
                heap.push((order_key(self.time(place, counts[place])), place));
            }
        }
        self.fill(&mut counts, limit);
        counts
    }

    /// Assigns these numbers of slots. A rank with more gives up its last ones.
    fn place(&self, present: &[Option<u32>], counts: &[u64]) -> Vec<Option<u32>> {
        let mut room = counts.to_vec();
        let mut dealt: Vec<Option<u32>> = present
            .iter()
            .map(|owner| {
                let place = *self.place_of.get(&(*owner)?)?;
                let has_room = room[place] > 0;
                room[place] -= u64::from(has_room);
                owner.filter(|_| has_room)
            })
            .collect();
        let mut place = 0;
        for owner in dealt.iter_mut().filter(|owner| owner.is_none()) {
            // Ranks that get several slots take turns.
            let Some(next) =
                (0..room.len()).map(|step| (place + step) % room.len()).find(|place| room[*place] > 0)
            else {
                break;
            };
            room[next] -= 1;
            *owner = Some(self.ranks[next]);
            place = next + 1;
        }
        dealt
    }
}

/// Orders non-negative times.
fn order_key(time: f64) -> u64 {
    time.to_bits()
}

#[cfg(test)]
mod tests;
