//! How many may do something at a time, changed while they do it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// As many as there are.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// Gives out so many permits. Where the number is lowered below those that are out, they are let finish, and given out
/// again only as far as the new number allows.
#[derive(Debug)]
pub(crate) struct Limit {
    semaphore: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    size: u32,
    /// Permits that are out and are not to come back.
    surplus: u32,
}

impl Limit {
    /// At most `size` at a time, at least one.
    pub(crate) fn new(size: u32) -> Self {
        let size = size.max(1);
        Self { semaphore: Semaphore::new(size as usize), state: Mutex::new(State { size, surplus: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many may go at a time, at least one.
    pub(crate) fn resize(&self, size: u32) {
        let size = size.max(1);
        let mut state = self.lock();
        if size > state.size {
            let grown = size - state.size;
            let kept = grown.min(state.surplus);
            state.surplus -= kept;
            self.semaphore.add_permits((grown - kept) as usize);
        } else {
            let taken = state.size - size;
            let free = self.semaphore.forget_permits(taken as usize) as u32;
            state.surplus += taken - free;
        }
        state.size = size;
    }

    /// Waits for a turn, in the order of asking.
    pub(crate) async fn acquire(&self) -> Permit<'_> {
        let permit = self.semaphore.acquire().await.expect("a limit is never closed");
        Permit { permit: Some(permit), limit: self }
    }
}

/// A turn; over when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    permit: Option<SemaphorePermit<'a>>,
    limit: &'a Limit,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.limit.lock();
        if let Some(permit) = self.permit.take().filter(|_| state.surplus > 0) {
            state.surplus -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use feedline_core::random::mix64;
    use futures::FutureExt;

    use super::*;

    fn try_acquire(limit: &Limit) -> Option<Permit<'_>> {
        limit.acquire().now_or_never()
    }

    #[test]
    fn a_lowered_limit_lets_what_runs_finish() {
        let limit = Limit::new(3);
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
        let limit = Limit::new(1);
        let _out = limit.acquire().await;
        let waits = limit.acquire();
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        limit.resize(2);
        waits.await;
    }

    #[test]
    fn whatever_happens_there_are_never_more_and_in_the_end_as_many_as_allowed() {
        for seed in 0..200 {
            let (limit, mut size) = (Limit::new(4), 4);
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
