//! A semaphore with adjustable size and prioritized waiters. The size can change while permits are in use.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pool::Priority;

/// The size of a semaphore that never blocks.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// Limits concurrency. If the size falls below the number of permits in use, these permits stay valid, and no new
/// permit is granted until the number in use is below the new size.
#[derive(Debug)]
pub(crate) struct AdjustableSemaphore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    size: u32,
    in_use: u32,
    /// Waiters, ordered by priority and then by arrival. Each waiter receives the time at which its permit is granted.
    waiting: BTreeMap<WaiterKey, oneshot::Sender<Instant>>,
    arrivals: u64,
}

type WaiterKey = (Priority, u64);

impl State {
    /// Grants permits to the most urgent waiters.
    fn grant(&mut self) {
        while self.in_use < self.size {
            let Some((_, waiter)) = self.waiting.pop_first() else { return };
            // Once removed from `waiting`, the waiter owns a permit, and releases the permit if it is cancelled.
            self.in_use += 1;
            let _ = waiter.send(Instant::now());
        }
    }
}

impl AdjustableSemaphore {
    /// Creates a semaphore with `size` permits, or one permit if `size` is 0.
    pub(crate) fn new(size: u32) -> Self {
        let state = State { size: size.max(1), in_use: 0, waiting: BTreeMap::new(), arrivals: 0 };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the number of permits to `size`, or to one if `size` is 0.
    pub(crate) fn resize(&self, size: u32) {
        let mut state = self.lock();
        state.size = size.max(1);
        state.grant();
    }

    /// Waits for a permit. Waiters with smaller `priority` values get permits first. Waiters of equal priority are
    /// served in order of arrival.
    pub(crate) async fn acquire(&self, priority: Priority) -> SemaphorePermit<'_> {
        let (key, granted) = {
            let mut state = self.lock();
            if state.in_use < state.size {
                state.in_use += 1;
                return SemaphorePermit { limit: self, granted_at: Instant::now() };
            }
            state.arrivals += 1;
            let key = (priority, state.arrivals);
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(key, sender);
            (key, receiver)
        };
        let mut waiter = Waiter { limit: self, key: Some(key) };
        let granted_at = granted.await.expect("a waiter is in the list until it owns a permit");
        waiter.key = None;
        SemaphorePermit { limit: self, granted_at }
    }

    fn release(&self) {
        let mut state = self.lock();
        state.in_use -= 1;
        state.grant();
    }
}

/// A task that waits for a permit. A cancelled waiter removes itself from `waiting`, or releases its permit if it has
/// already received a permit.
struct Waiter<'a> {
    limit: &'a AdjustableSemaphore,
    key: Option<WaiterKey>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let was_waiting = self.limit.lock().waiting.remove(&key).is_some();
        if !was_waiting {
            self.limit.release();
        }
    }
}

/// A permit, which is released when it is dropped.
#[derive(Debug)]
pub(crate) struct SemaphorePermit<'a> {
    limit: &'a AdjustableSemaphore,
    granted_at: Instant,
}

impl SemaphorePermit<'_> {
    /// The time at which the permit was granted. The task that owns the permit may run later.
    pub(crate) fn granted_at(&self) -> Instant {
        self.granted_at
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.limit.release();
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
    fn permits_in_use_stay_valid_when_the_size_falls() {
        let limit = AdjustableSemaphore::new(3);
        let mut out: Vec<_> = (0..3).filter_map(|_| try_acquire(&limit)).collect();
        limit.resize(1);
        out.truncate(1);
        assert!(try_acquire(&limit).is_none(), "one permit is in use");
        out.clear();
        let one = try_acquire(&limit);
        assert!(one.is_some() && try_acquire(&limit).is_none());
        limit.resize(UNLIMITED);
        assert!(try_acquire(&limit).is_some());
    }

    #[tokio::test]
    async fn a_waiter_gets_a_permit_when_the_size_rises() {
        let limit = AdjustableSemaphore::new(1);
        let _out = limit.acquire(0).await;
        let waits = limit.acquire(0);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        limit.resize(2);
        waits.await;
    }

    #[tokio::test]
    async fn the_most_urgent_waiter_goes_first_and_a_cancelled_one_releases_its_permit() {
        let limit = AdjustableSemaphore::new(1);
        let first = limit.acquire(9).await;
        let mut waiting: Vec<_> = [7, 3, 5, 3].map(|urgency| Box::pin(limit.acquire(urgency))).into();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        drop(first);
        // Two waiters have priority 3; the first one owns the permit now and is cancelled.
        drop(waiting.remove(1));
        let second = waiting.remove(2).now_or_never().expect("the second waiter is next");
        assert!(waiting[1].as_mut().now_or_never().is_none());
        // A cancelled waiter does not get a permit.
        drop(waiting.remove(1));
        drop(second);
        assert!(waiting.remove(0).now_or_never().is_some());
    }

    /// Holders of permits and waiters are cancelled at the same time, as when a lease is revoked.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_waiter_that_is_cancelled_while_it_gets_a_permit_releases_it() {
        let limit = std::sync::Arc::new(AdjustableSemaphore::new(1));
        for round in 0..300_u64 {
            let cancel = tokio_util::sync::CancellationToken::new();
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let (limit, cancel) = (std::sync::Arc::clone(&limit), cancel.clone());
                    tokio::spawn(cancel.run_until_cancelled_owned(async move {
                        loop {
                            let _permit = limit.acquire(mix64(round + number) % 3).await;
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
            assert_eq!((state.in_use, state.waiting.len()), (0, 0), "round {round}");
        }
    }

    #[test]
    fn the_number_of_permits_in_use_never_exceeds_the_size() {
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
