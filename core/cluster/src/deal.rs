//! Which rank of an elastic job has which slot: unequal ranks get unequal numbers, so that the slowest of them is done with
//! its slots as early as can be, and as few slots as possible change hands.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Slots of ranks that stay move only where the slowest rank is done sooner by more than this factor.
const WORTH_MOVING: f64 = 1.1;

/// A rank that takes slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SlotRank {
    /// Its number.
    pub rank: u32,
    /// Seconds that it takes for a batch of one slot; 0 where that is not known: then as long as the others on average.
    pub slot_seconds: f64,
}

/// Deals slots to ranks. `present` has who owns each slot, `None` or a rank that is not listed where nobody does; the result
/// has who shall own it, `None` only where there are no ranks.
///
/// Each rank has at least one slot where there are enough. Of all ways to deal, one has the least time
/// `max(slots × slot_seconds)` over the ranks, and of these the fewest slots that change hands. Where no rank has come or gone,
/// nothing moves unless that time falls by more than a tenth.
pub(crate) fn deal_slots(ranks: &[SlotRank], present: &[Option<u32>]) -> Vec<Option<u32>> {
    if ranks.is_empty() {
        return vec![None; present.len()];
    }
    let hand = Hand::new(ranks, present);
    let best = hand.fastest();
    if hand.is_dealt() && hand.slowest(&hand.now) <= WORTH_MOVING * hand.slowest(&best) {
        return present.to_vec();
    }
    hand.place(present, &hand.nearest(hand.slowest(&best)))
}

/// The problem with dense ordinals: `now[r]` slots are with rank `r`.
struct Hand {
    ranks: Vec<u32>,
    place_of: BTreeMap<u32, usize>,
    seconds: Vec<f64>,
    now: Vec<u64>,
    slots: u64,
    /// Slots that each rank has at least.
    least: u64,
}

impl Hand {
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

    /// Whether every slot is with one of the ranks, and none of these is without.
    fn is_dealt(&self) -> bool {
        self.now.iter().sum::<u64>() == self.slots && self.now.iter().all(|count| *count >= self.least)
    }

    fn time(&self, place: usize, count: u64) -> f64 {
        count as f64 * self.seconds[place]
    }

    fn slowest(&self, counts: &[u64]) -> f64 {
        counts.iter().enumerate().map(|(place, count)| self.time(place, *count)).fold(0.0, f64::max)
    }

    /// Numbers of slots with the least time of the slowest rank: each slot goes to whoever is done with it first.
    fn fastest(&self) -> Vec<u64> {
        let mut counts = vec![self.least; self.ranks.len()];
        self.fill(&mut counts, f64::INFINITY);
        counts
    }

    /// Hands out what is left of the slots, each to the rank that is done with it first, none beyond `limit`.
    fn fill(&self, counts: &mut [u64], limit: f64) {
        let after = |place: usize, count: u64| Reverse((key(self.time(place, count + 1)), place));
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

    /// Numbers of slots with which no rank takes longer than `limit` and as many slots as possible stay where they are.
    fn nearest(&self, limit: f64) -> Vec<u64> {
        let most = |place: usize| {
            // Rounding may be off by one either way.
            let about = (limit / self.seconds[place]) as u64 + 1;
            let fits = |count: &u64| self.time(place, *count) <= limit;
            (0..=about).rev().take(3).find(fits).unwrap_or(0).max(self.least)
        };
        let mut counts: Vec<u64> =
            self.now.iter().enumerate().map(|(place, now)| (*now).clamp(self.least, most(place))).collect();
        // Ranks that had none were given one each: others give up as many, the slowest first.
        let mut heap: BinaryHeap<(u64, usize)> =
            counts.iter().enumerate().map(|(place, count)| (key(self.time(place, *count)), place)).collect();
        let mut over = counts.iter().sum::<u64>().saturating_sub(self.slots);
        while over > 0
            && let Some((_, place)) = heap.pop()
        {
            if counts[place] > self.least {
                counts[place] -= 1;
                over -= 1;
                heap.push((key(self.time(place, counts[place])), place));
            }
        }
        self.fill(&mut counts, limit);
        counts
    }

    /// Gives ranks these numbers of slots. A rank that has more gives up its last ones.
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
            // Those that take several take them from all over, one in turn.
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

/// Orders times, none of which is below 0.
fn key(time: f64) -> u64 {
    time.to_bits()
}

#[cfg(test)]
mod tests;
