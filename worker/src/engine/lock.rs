//! The lock of the engine's state, and the queue of events that are applied to the state.
//!
//! Threads that serve fetches or have finished a group do not wait for the lock. They add an event to the queue, and
//! the thread that holds the lock applies the event. Fetches are notified only after the lock is released, because a
//! woken thread may preempt the thread that wakes it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use super::events::EngineEvent;
use super::state::EngineState;

/// Maximum number of queued events. When the queue is full, threads wait for the lock instead.
pub(super) const EVENTS_MAX: usize = 8_192;

/// The state of the engine behind a lock, and the queue of events to apply to the state.
pub(super) struct StateLock {
    state: Mutex<EngineState>,
    events: ArrayQueue<EngineEvent>,
    /// Notified when events are queued and no thread is applying them.
    pub(super) has_events: Notify,
    /// Nanoseconds that threads have waited for the lock.
    wait_ns: AtomicU64,
    /// The number of computed leases when the lock was last released.
    computed: AtomicUsize,
}

/// The locked state.
pub(super) struct StateGuard<'a> {
    lock: &'a StateLock,
    /// `None` after the lock is released.
    state: Option<MutexGuard<'a, EngineState>>,
}

impl Default for StateLock {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            events: ArrayQueue::new(EVENTS_MAX),
            has_events: Notify::new(),
            wait_ns: AtomicU64::new(0),
            computed: AtomicUsize::new(0),
        }
    }
}

impl StateLock {
    /// Locks the state, and adds the time spent waiting for the lock to `wait_ns`.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        let started = Instant::now();
        let state = self.state.lock().expect("no thread panics while it holds the engine's state");
        self.wait_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        StateGuard { lock: self, state: Some(state) }
    }

    /// Returns `None` if another thread holds the lock.
    fn try_lock(&self) -> Option<StateGuard<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(StateGuard { lock: self, state: Some(state) }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("no thread panics while it holds the engine's state"),
        }
    }

    /// Adds an event to the queue. If the queue is full, waits for the lock instead, applies all events, and returns
    /// the guard. Otherwise the caller calls [`Self::lock_for_events`].
    pub(super) fn add_event(&self, event: EngineEvent) -> Option<StateGuard<'_>> {
        let event = self.events.push(event).err()?;
        let mut state = self.lock();
        state.apply_events();
        state.apply(event);
        Some(state)
    }

    /// Locks the state if events are queued and no other thread holds the lock. A thread that holds the lock checks for
    /// queued events after it releases the lock.
    pub(super) fn lock_for_events(&self) -> Option<StateGuard<'_>> {
        if self.events.is_empty() {
            return None;
        }
        // Pairs with the fence in `StateGuard::release`: either this thread gets the lock, or the other thread sees the
        // event.
        fence(Ordering::SeqCst);
        self.try_lock()
    }

    /// The number of leases whose rows are all computed.
    pub(super) fn computed_count(&self) -> usize {
        self.computed.load(Ordering::Relaxed)
    }

    /// Total time that threads have waited for the lock.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed))
    }
}

impl StateGuard<'_> {
    /// Applies the queued events. Other threads may add events at the same time, so one call applies a bounded number
    /// of events.
    pub(super) fn apply_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.lock.events.pop() else { break };
            self.apply(event);
        }
    }

    /// Releases the lock. The caller then applies the events that other threads have queued in the meantime.
    pub(super) fn unlock(mut self) {
        self.release();
    }

    fn release(&mut self) {
        let notifications = self.leases.take_notifications();
        self.lock.computed.store(self.leases.computed().len(), Ordering::Relaxed);
        self.state = None;
        fence(Ordering::SeqCst);
        notifications.into_iter().for_each(|fetch| fetch.notify_waiters());
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if self.state.is_some() {
            self.release();
            if !self.lock.events.is_empty() {
                self.lock.has_events.notify_one();
            }
        }
    }
}

impl Deref for StateGuard<'_> {
    type Target = EngineState;

    fn deref(&self) -> &EngineState {
        self.state.as_ref().expect("the lock is held until the guard is dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("the lock is held until the guard is dropped")
    }
}
