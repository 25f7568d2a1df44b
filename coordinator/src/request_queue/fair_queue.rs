//! Who is next: what waits of each asker in a line of its own, lines in turn, and what must not wait before what can.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How soon something is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPriority {
    /// Reports: who is silent for too long is taken for lost.
    Report,
    /// The rest.
    Other,
}

/// Of what is taken together, this part is for what is not urgent, if any of it waits: reports alone never keep it out.
const OTHERS_PART: usize = 8;

/// How much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueBounds {
    /// Of all askers together.
    pub(super) all: usize,
    /// Of one.
    pub(super) of_one: usize,
}

/// What waits, by urgency and asker.
#[derive(Debug)]
pub(super) struct FairQueue<K, T> {
    reports: Class<K, T>,
    others: Class<K, T>,
}

#[derive(Debug)]
struct Class<K, T> {
    bounds: QueueBounds,
    lines: BTreeMap<K, VecDeque<T>>,
    /// Askers by how much of theirs waits.
    by_len: BTreeSet<(usize, K)>,
    /// Askers with a line, the next one in front.
    turns: VecDeque<K>,
    len: usize,
}

/// What became of something that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EnqueueOutcome<T> {
    /// It waits.
    Waits,
    /// It waits in the place of this, the last of whoever had the most.
    Instead(T),
    /// There is no room for it.
    Full(T),
}

impl<K: Ord + Copy, T> FairQueue<K, T> {
    pub(super) fn new(reports: QueueBounds, others: QueueBounds) -> Self {
        Self { reports: Class::new(reports), others: Class::new(others) }
    }

    pub(super) fn put(&mut self, urgency: RequestPriority, asker: K, it: T) -> EnqueueOutcome<T> {
        match urgency {
            RequestPriority::Report => self.reports.put(asker, it),
            RequestPriority::Other => self.others.put(asker, it),
        }
    }

    /// Up to so much, in the order in which it is to be answered.
    pub(super) fn take(&mut self, most: usize) -> Vec<T> {
        let kept_free = self.others.len.min(most / OTHERS_PART);
        let mut taken = Vec::with_capacity(most.min(self.len()));
        self.reports.take(most - kept_free, &mut taken);
        let rest = most - taken.len();
        self.others.take(rest, &mut taken);
        taken
    }

    pub(super) fn len(&self) -> usize {
        self.reports.len + self.others.len
    }
}

impl<K: Ord + Copy, T> Class<K, T> {
    fn new(bounds: QueueBounds) -> Self {
        Self { bounds, lines: BTreeMap::new(), by_len: BTreeSet::new(), turns: VecDeque::new(), len: 0 }
    }

    fn put(&mut self, asker: K, it: T) -> EnqueueOutcome<T> {
        let own = self.lines.get(&asker).map_or(0, VecDeque::len);
        if own >= self.bounds.of_one {
            return EnqueueOutcome::Full(it);
        }
        let mut instead = None;
        if self.len >= self.bounds.all {
            // Whoever has the most makes room for one who has less.
            let most = self.by_len.last().copied().filter(|(len, _)| *len > own + 1);
            let Some((len, greedy)) = most else { return EnqueueOutcome::Full(it) };
            instead = self.lines.get_mut(&greedy).and_then(VecDeque::pop_back);
            self.resize(greedy, len, len - 1);
            self.len -= 1;
        }
        let line = self.lines.entry(asker).or_default();
        if line.is_empty() {
            self.turns.push_back(asker);
        }
        line.push_back(it);
        self.resize(asker, own, own + 1);
        self.len += 1;
        instead.map_or(EnqueueOutcome::Waits, EnqueueOutcome::Instead)
    }

    /// So much of an asker's waits now, where so much did.
    fn resize(&mut self, asker: K, before: usize, now: usize) {
        self.by_len.remove(&(before, asker));
        if now > 0 {
            self.by_len.insert((now, asker));
        }
    }

    /// One of each asker in turn.
    fn take(&mut self, most: usize, taken: &mut Vec<T>) {
        for _ in 0..most {
            let Some(asker) = self.turns.pop_front() else { return };
            let Some(line) = self.lines.get_mut(&asker) else { continue };
            taken.extend(line.pop_front());
            let left = line.len();
            self.resize(asker, left + 1, left);
            self.len -= 1;
            if left == 0 {
                self.lines.remove(&asker);
            } else {
                self.turns.push_back(asker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(all: usize, of_one: usize) -> FairQueue<u32, (u32, u32)> {
        FairQueue::new(QueueBounds { all, of_one }, QueueBounds { all, of_one })
    }

    #[test]
    fn one_who_floods_is_one_among_others() {
        let mut lanes = lanes(10_000, 5_000);
        for number in 0..5_000 {
            assert_eq!(lanes.put(RequestPriority::Other, 1, (1, number)), EnqueueOutcome::Waits);
        }
        for asker in 2..=11 {
            for number in 0..3 {
                assert_eq!(lanes.put(RequestPriority::Other, asker, (asker, number)), EnqueueOutcome::Waits);
            }
        }
        let taken = lanes.take(40);
        for asker in 2..=11 {
            let places: Vec<usize> = (0..taken.len()).filter(|place| taken[*place].0 == asker).collect();
            assert_eq!(places.len(), 3, "all of {asker}");
            for (number, place) in places.iter().enumerate() {
                assert!(*place < 11 * (number + 1), "one of each in turn: {taken:?}");
                assert_eq!(taken[*place].1, number as u32, "each in its own order");
            }
        }
    }

    #[test]
    fn reports_go_first_and_leave_something_for_the_rest() {
        let mut lanes = lanes(10_000, 5_000);
        for number in 0..300 {
            lanes.put(RequestPriority::Other, 1, (1, number));
            lanes.put(RequestPriority::Report, number, (2, number));
        }
        let taken = lanes.take(256);
        let others = taken.iter().filter(|(kind, _)| *kind == 1).count();
        assert_eq!((taken.len(), others), (256, 256 / OTHERS_PART));
        assert!(taken[..256 - others].iter().all(|(kind, _)| *kind == 2), "reports are in front");
        let taken = lanes.take(256);
        assert_eq!(taken.iter().filter(|(kind, _)| *kind == 2).count(), 300 - (256 - others));
        assert_eq!(lanes.len(), 600 - 512);
        assert_eq!(lanes.take(256).len(), 600 - 512);
        assert_eq!((lanes.len(), lanes.take(256).len()), (0, 0));
    }

    #[test]
    fn a_line_has_a_bound_and_so_have_all_together() {
        let mut lanes = lanes(10, 8);
        for number in 0..8 {
            assert_eq!(lanes.put(RequestPriority::Other, 1, (1, number)), EnqueueOutcome::Waits);
        }
        assert_eq!(lanes.put(RequestPriority::Other, 1, (1, 8)), EnqueueOutcome::Full((1, 8)), "of one");
        assert_eq!(lanes.put(RequestPriority::Other, 2, (2, 0)), EnqueueOutcome::Waits);
        assert_eq!(lanes.put(RequestPriority::Other, 3, (3, 0)), EnqueueOutcome::Waits);
        // Full: whoever has the most makes room, until all have about as much.
        assert_eq!(lanes.put(RequestPriority::Other, 4, (4, 0)), EnqueueOutcome::Instead((1, 7)));
        for number in 1..4 {
            assert!(matches!(
                lanes.put(RequestPriority::Other, 4, (4, number)),
                EnqueueOutcome::Instead((1, _))
            ));
        }
        assert_eq!(lanes.put(RequestPriority::Other, 4, (4, 4)), EnqueueOutcome::Full((4, 4)));
        assert_eq!(lanes.len(), 10);
        assert_eq!(
            lanes.put(RequestPriority::Report, 9, (9, 0)),
            EnqueueOutcome::Waits,
            "reports have room of their own"
        );
        let taken = lanes.take(20);
        assert_eq!((taken.len(), taken[0], lanes.len()), (11, (9, 0), 0));
    }

    /// However many lines there are, whoever has the most is found without a look at each.
    #[test]
    fn lengths_are_those_of_the_lines() {
        let mut class = Class::new(QueueBounds { all: 40, of_one: 12 });
        let mut draw = 7_u64;
        for number in 0..5_000_u32 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let asker = (draw >> 60) as u32;
            let most = class.lines.iter().map(|(asker, line)| (line.len(), *asker)).max();
            match class.put(asker, (asker, number)) {
                EnqueueOutcome::Instead((greedy, _)) => {
                    assert_eq!(most.map(|(_, asker)| asker), Some(greedy))
                }
                EnqueueOutcome::Waits | EnqueueOutcome::Full(_) => {}
            }
            if number % 7 == 0 {
                class.take((draw >> 40) as usize % 9, &mut Vec::new());
            }
            let lens = class.lines.iter().map(|(asker, line)| (line.len(), *asker));
            assert_eq!(class.by_len, lens.collect::<BTreeSet<_>>(), "after {number}");
            assert_eq!(class.len, class.lines.values().map(VecDeque::len).sum::<usize>());
        }
    }
}
