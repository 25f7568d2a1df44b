//! How many may do something at a time, changed while they do it; the most urgent go first.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::pool::Priority;

/// As many as there are.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// Gives out so many turns. Where the number is lowered below those that are out, they are let finish, and given out
/// again only as far as the new number allows.
#[derive(Debug)]
pub(crate) struct AdjustableSemaphore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    size: u32,
    out: u32,
    /// Those that wait, by urgency, and among equals in the order of asking.
    waiting: BTreeMap<Key, oneshot::Sender<()>>,
    asked: u64,
}

type Key = (Priority, u64);

impl State {
    /// Gives turns to those that wait, as far as there are any.
    fn give(&mut self) {
        while self.out < self.size {
            let Some((_, turn)) = self.waiting.pop_first() else { return };
            // Who is taken off the list has the turn, and gives it back if it is about to leave.
            self.out += 1;
            let _ = turn.send(());
        }
    }
}

impl AdjustableSemaphore {
    /// At most `size` at a time, at least one.
    pub(crate) fn new(size: u32) -> Self {
        let state = State { size: size.max(1), out: 0, waiting: BTreeMap::new(), asked: 0 };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many may go at a time, at least one.
    pub(crate) fn resize(&self, size: u32) {
        let mut state = self.lock();
        state.size = size.max(1);
        state.give();
    }

    /// Waits for a turn: before all that are less urgent, and behind those that are as urgent and asked before.
    pub(crate) async fn acquire(&self, priority: Priority) -> SemaphorePermit<'_> {
        let (key, turn) = {
            let mut state = self.lock();
            if state.out < state.size {
                state.out += 1;
                return SemaphorePermit { limit: self };
            }
            state.asked += 1;
            let key = (priority, state.asked);
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(key, sender);
            (key, receiver)
        };
        let mut place = Place { limit: self, key: Some(key) };
        turn.await.expect("whoever waits is on the list until it has its turn");
        place.key = None;
        SemaphorePermit { limit: self }
    }

    /// A turn is over.
    fn put_back(&self) {
        let mut state = self.lock();
        state.out -= 1;
        state.give();
    }
}

/// A place on the list. Who leaves gives it up, or the turn if it has been taken off the list for one.
struct Place<'a> {
    limit: &'a AdjustableSemaphore,
    key: Option<Key>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let was_waiting = self.limit.lock().waiting.remove(&key).is_some();
        if !was_waiting {
            self.limit.put_back();
        }
    }
}

/// A turn; over when it is dropped.
#[derive(Debug)]
pub(crate) struct SemaphorePermit<'a> {
    limit: &'a AdjustableSemaphore,
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.limit.put_back();
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::random::mix64;
    use futures::FutureExt;

    use super::*;

    fn try_acquire(limit: &AdjustableSemaphore) -> Option<SemaphorePermit<'_>> {
        limit.acquire(0).now_or_never()
    }

    #[test]
    fn a_lowered_limit_lets_what_runs_finish() {
        let limit = AdjustableSemaphore::new(3);
        let mut out: Vec<_> = (0..3).filter_map(|_| try_acquire(&limit)).collect();
        limit.resize(1);
        out.truncate(1);
        assert!(try_acquire(&limit).is_none(), "one runs still");
        out.clear();
        let one = try_acquire(&limit);
        assert!(one.is_some() && try_acquire(&limit).is_none());
        limit.resize(UNLIMITED);
        assert!(try_acquire(&limit).is_some());
    }

    #[tokio::test]
    async fn whoever_waits_goes_when_the_limit_is_raised() {
        let limit = AdjustableSemaphore::new(1);
        let _out = limit.acquire(0).await;
        let waits = limit.acquire(0);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        limit.resize(2);
        waits.await;
    }

    #[tokio::test]
    async fn the_most_urgent_goes_first_and_who_leaves_gives_up_its_turn() {
        let limit = AdjustableSemaphore::new(1);
        let first = limit.acquire(9).await;
        let mut waiting: Vec<_> = [7, 3, 5, 3].map(|urgency| Box::pin(limit.acquire(urgency))).into();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        drop(first);
        // Both of the same urgency were asked before, in this order; the first has been given its turn and leaves.
        drop(waiting.remove(1));
        let second = waiting.remove(2).now_or_never().expect("it is the next");
        assert!(waiting[1].as_mut().now_or_never().is_none());
        // One that leaves while it waits takes no turn.
        drop(waiting.remove(1));
        drop(second);
        assert!(waiting.remove(0).now_or_never().is_some());
    }

    /// Those that hold turns and those that wait for them leave at the same time, as when a lease is taken back.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn who_leaves_while_it_is_given_a_turn_gives_it_back() {
        let limit = std::sync::Arc::new(AdjustableSemaphore::new(1));
        for round in 0..300_u64 {
            let cancel = tokio_util::sync::CancellationToken::new();
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let (limit, cancel) = (std::sync::Arc::clone(&limit), cancel.clone());
                    tokio::spawn(cancel.run_until_cancelled_owned(async move {
                        loop {
                            let _turn = limit.acquire(mix64(round + number) % 3).await;
                            tokio::task::yield_now().await;
                        }
                    }))
                })
                .collect();
            (0..round % 20).for_each(|_| std::thread::yield_now());
            cancel.cancel();
            for task in tasks {
                task.await.expect("no task panics");
            }
            let state = limit.lock();
            assert_eq!((state.out, state.waiting.len()), (0, 0), "round {round}");
        }
    }

    #[test]
    fn whatever_happens_there_are_never_more_and_in_the_end_as_many_as_allowed() {
        for seed in 0..200 {
            let (limit, mut size) = (AdjustableSemaphore::new(4), 4);
            let mut out = Vec::new();
            for step in 0..100 {
                let dice = mix64(seed * 1000 + step);
                match dice % 4 {
                    0 => {
                        size = (dice >> 8) as u32 % 6 + 1;
                        limit.resize(size);
                    }
                    1 => drop((!out.is_empty()).then(|| out.swap_remove(dice as usize / 8 % out.len()))),
                    _ => {
                        let before = out.len();
                        out.extend(try_acquire(&limit));
                        assert_eq!(out.len() > before, before < size as usize, "seed {seed}, step {step}");
                    }
                }
            }
            out.clear();
            let free: Vec<_> = std::iter::from_fn(|| try_acquire(&limit)).collect();
            assert_eq!(free.len(), size as usize, "seed {seed}");
        }
    }
}
