//! A fair queue with one FIFO queue per client. Clients take turns, and reports precede other requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The priority of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPriority {
    /// A report. Workers and consumers without reports expire.
    Report,
    /// A request that is not a report.
    Other,
}

/// If other requests are queued, one in this many popped items is such a request, so that reports do not starve other
/// requests.
const OTHER_REQUEST_INTERVAL: usize = 8;

/// Limits on the number of queued items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueBounds {
    /// Maximum number of queued items of all clients.
    pub(super) total: usize,
    /// Maximum number of queued items of each client.
    pub(super) per_client: usize,
}

/// Queued items by priority and client.
#[derive(Debug)]
pub(super) struct FairQueue<K, T> {
    reports: PriorityClass<K, T>,
    others: PriorityClass<K, T>,
}

#[derive(Debug)]
struct PriorityClass<K, T> {
    bounds: QueueBounds,
    queues: BTreeMap<K, VecDeque<T>>,
    /// Clients by the lengths of their queues.
    by_len: BTreeSet<(usize, K)>,
    /// Clients with queued items, in the order of their turns.
    rotation: VecDeque<K>,
    len: usize,
}

/// The outcome of a push.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EnqueueOutcome<T> {
    /// The item was queued.
    Queued,
    /// The new item was queued, and the contained item was evicted: the last item of the client with the longest queue.
    Evicted(T),
    /// The queue is full.
    Rejected(T),
}

impl<K: Ord + Copy, T> FairQueue<K, T> {
    pub(super) fn new(reports: QueueBounds, others: QueueBounds) -> Self {
        Self { reports: PriorityClass::new(reports), others: PriorityClass::new(others) }
    }

    pub(super) fn push(&mut self, priority: RequestPriority, client: K, item: T) -> EnqueueOutcome<T> {
        match priority {
            RequestPriority::Report => self.reports.push(client, item),
            RequestPriority::Other => self.others.push(client, item),
        }
    }

    /// Removes and returns at most `max_items` items, in the order in which the driver should process them.
    pub(super) fn pop(&mut self, max_items: usize) -> Vec<T> {
        let reserved = self.others.len.min(max_items / OTHER_REQUEST_INTERVAL);
        let mut popped = Vec::with_capacity(max_items.min(self.len()));
        self.reports.pop(max_items - reserved, &mut popped);
        let rest = max_items - popped.len();
        self.others.pop(rest, &mut popped);
        popped
    }

    pub(super) fn len(&self) -> usize {
        self.reports.len + self.others.len
    }
}

impl<K: Ord + Copy, T> PriorityClass<K, T> {
    fn new(bounds: QueueBounds) -> Self {
        Self { bounds, queues: BTreeMap::new(), by_len: BTreeSet::new(), rotation: VecDeque::new(), len: 0 }
    }

    fn push(&mut self, client: K, item: T) -> EnqueueOutcome<T> {
        let own = self.queues.get(&client).map_or(0, VecDeque::len);
        if own >= self.bounds.per_client {
            return EnqueueOutcome::Rejected(item);
        }
        let mut evicted = None;
        if self.len >= self.bounds.total {
            // The client with the longest queue loses an item to a client with a shorter queue.
            let longest_queue = self.by_len.last().copied().filter(|(len, _)| *len > own + 1);
            let Some((len, longest)) = longest_queue else { return EnqueueOutcome::Rejected(item) };
            evicted = self.queues.get_mut(&longest).and_then(VecDeque::pop_back);
            self.resize(longest, len, len - 1);
            self.len -= 1;
        }
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.rotation.push_back(client);
        }
        queue.push_back(item);
        self.resize(client, own, own + 1);
        self.len += 1;
        evicted.map_or(EnqueueOutcome::Queued, EnqueueOutcome::Evicted)
    }

    /// Updates the length of a client's queue.
    fn resize(&mut self, client: K, before: usize, now: usize) {
        self.by_len.remove(&(before, client));
        if now > 0 {
            self.by_len.insert((now, client));
        }
    }

    /// Pops one item of each client in turn.
    fn pop(&mut self, max_items: usize, popped: &mut Vec<T>) {
        for _ in 0..max_items {
            let Some(client) = self.rotation.pop_front() else { return };
            let Some(queue) = self.queues.get_mut(&client) else { continue };
            popped.extend(queue.pop_front());
            let left = queue.len();
            self.resize(client, left + 1, left);
            self.len -= 1;
            if left == 0 {
                self.queues.remove(&client);
            } else {
                self.rotation.push_back(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(total: usize, per_client: usize) -> FairQueue<u32, (u32, u32)> {
        FairQueue::new(QueueBounds { total, per_client }, QueueBounds { total, per_client })
    }

    #[test]
    fn a_client_that_floods_the_queue_gets_only_its_share() {
        let mut queue = queue(10_000, 5_000);
        for number in 0..5_000 {
            assert_eq!(queue.push(RequestPriority::Other, 1, (1, number)), EnqueueOutcome::Queued);
        }
        for client in 2..=11 {
            for number in 0..3 {
                assert_eq!(
                    queue.push(RequestPriority::Other, client, (client, number)),
                    EnqueueOutcome::Queued
                );
            }
        }
        let popped = queue.pop(40);
        for client in 2..=11 {
            let places: Vec<usize> = (0..popped.len()).filter(|place| popped[*place].0 == client).collect();
            assert_eq!(places.len(), 3, "all of {client}");
            for (number, place) in places.iter().enumerate() {
                assert!(*place < 11 * (number + 1), "one of each in turn: {popped:?}");
                assert_eq!(popped[*place].1, number as u32, "each in its own order");
            }
        }
    }

    #[test]
    fn reports_come_first_and_leave_room_for_other_requests() {
        let mut queue = queue(10_000, 5_000);
        for number in 0..300 {
            queue.push(RequestPriority::Other, 1, (1, number));
            queue.push(RequestPriority::Report, number, (2, number));
        }
        let popped = queue.pop(256);
        let others = popped.iter().filter(|(kind, _)| *kind == 1).count();
        assert_eq!((popped.len(), others), (256, 256 / OTHER_REQUEST_INTERVAL));
        assert!(popped[..256 - others].iter().all(|(kind, _)| *kind == 2), "reports come first");
        let popped = queue.pop(256);
        assert_eq!(popped.iter().filter(|(kind, _)| *kind == 2).count(), 300 - (256 - others));
        assert_eq!(queue.len(), 600 - 512);
        assert_eq!(queue.pop(256).len(), 600 - 512);
        assert_eq!((queue.len(), queue.pop(256).len()), (0, 0));
    }

    #[test]
    fn the_queues_are_bounded_per_client_and_together() {
        let mut queue = queue(10, 8);
        for number in 0..8 {
            assert_eq!(queue.push(RequestPriority::Other, 1, (1, number)), EnqueueOutcome::Queued);
        }
        assert_eq!(
            queue.push(RequestPriority::Other, 1, (1, 8)),
            EnqueueOutcome::Rejected((1, 8)),
            "the bound of one client"
        );
        assert_eq!(queue.push(RequestPriority::Other, 2, (2, 0)), EnqueueOutcome::Queued);
        assert_eq!(queue.push(RequestPriority::Other, 3, (3, 0)), EnqueueOutcome::Queued);
        // The client with the longest queue loses requests until all queues have about the same length.
        assert_eq!(queue.push(RequestPriority::Other, 4, (4, 0)), EnqueueOutcome::Evicted((1, 7)));
        for number in 1..4 {
            assert!(matches!(
                queue.push(RequestPriority::Other, 4, (4, number)),
                EnqueueOutcome::Evicted((1, _))
            ));
        }
        assert_eq!(queue.push(RequestPriority::Other, 4, (4, 4)), EnqueueOutcome::Rejected((4, 4)));
        assert_eq!(queue.len(), 10);
        assert_eq!(
            queue.push(RequestPriority::Report, 9, (9, 0)),
            EnqueueOutcome::Queued,
            "reports have separate bounds"
        );
        let popped = queue.pop(20);
        assert_eq!((popped.len(), popped[0], queue.len()), (11, (9, 0), 0));
    }

    #[test]
    fn the_index_contains_the_lengths_of_all_queues() {
        let mut class = PriorityClass::new(QueueBounds { total: 40, per_client: 12 });
        let mut draw = 7_u64;
        for number in 0..5_000_u32 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let client = (draw >> 60) as u32;
            let longest_queue = class.queues.iter().map(|(client, items)| (items.len(), *client)).max();
            match class.push(client, (client, number)) {
                EnqueueOutcome::Evicted((longest, _)) => {
                    assert_eq!(longest_queue.map(|(_, client)| client), Some(longest))
                }
                EnqueueOutcome::Queued | EnqueueOutcome::Rejected(_) => {}
            }
            if number % 7 == 0 {
                class.pop((draw >> 40) as usize % 9, &mut Vec::new());
            }
            let lens = class.queues.iter().map(|(client, items)| (items.len(), *client));
            assert_eq!(class.by_len, lens.collect::<BTreeSet<_>>(), "after {number}");
            assert_eq!(class.len, class.queues.values().map(VecDeque::len).sum::<usize>());
        }
    }
}
