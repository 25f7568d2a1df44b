//! The lock of the engine's state, and the events that wait to be applied to the state.
//!
//! Threads that serve fetches or have finished a group do not wait for the lock. They add an event, and the thread that
//! holds the lock applies it. Fetches are notified after the lock is released: a woken thread may interrupt the one that
//! wakes it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use super::events::EngineEvent;
use super::state::EngineState;

/// Maximum number of events that wait. Above it, threads wait for the lock.
pub(super) const EVENTS_MAX: usize = 8_192;

/// The state of the engine, its lock, and the events to apply.
pub(super) struct StateLock {
    state: Mutex<EngineState>,
    events: ArrayQueue<EngineEvent>,
    /// Notified when events wait and no thread applies them.
    pub(super) has_events: Notify,
    /// Nanoseconds that threads have waited for the lock.
    wait_ns: AtomicU64,
    /// The number of computed leases when the lock was released last.
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
    /// Locks the state, and measures the wait if another thread holds the lock.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        let started = Instant::now();
        let state = self.state.lock().expect("no code panics while it holds the engine's state");
        self.wait_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        StateGuard { lock: self, state: Some(state) }
    }

    /// `None` if another thread holds the lock.
    fn try_lock(&self) -> Option<StateGuard<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(StateGuard { lock: self, state: Some(state) }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("no code panics while it holds the engine's state"),
        }
    }

    /// Adds an event, which the caller applies if no other thread holds the lock. If too many events wait, waits for the lock
    /// instead, and applies all events.
    pub(super) fn add_event(&self, event: EngineEvent) -> Option<StateGuard<'_>> {
        let event = self.events.push(event).err()?;
        let mut state = self.lock();
        state.apply_events();
        state.apply(event);
        Some(state)
    }

    /// Locks the state if events wait and no other thread holds the lock. A thread that holds the lock finds the events when
    /// it releases the lock.
    pub(super) fn lock_for_events(&self) -> Option<StateGuard<'_>> {
        if self.events.is_empty() {
            return None;
        }
        // The other fence is in `StateGuard::drop`: either this thread gets the lock, or the other one finds the event.
        fence(Ordering::SeqCst);
        self.try_lock()
    }

    /// The number of leases whose rows are all computed.
    pub(super) fn computed_count(&self) -> usize {
        self.computed.load(Ordering::Relaxed)
    }

    /// Time that threads have waited for the lock.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed))
    }
}

impl StateGuard<'_> {
    /// Applies the events that wait.
    pub(super) fn apply_events(&mut self) {
        while let Some(event) = self.lock.events.pop() {
            self.apply(event);
        }
    }

    /// Releases the lock. The caller applies the events that other threads have added in the meantime.
    pub(super) fn unlock(mut self) {
        self.release();
    }

    fn release(&mut self) {
        let notifications = self.leases.take_notifications();
        self.lock.computed.store(self.leases.computed().len(), Ordering::Relaxed);
        self.state = None;
        notifications.into_iter().for_each(|fetch| fetch.notify_waiters());
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if self.state.is_some() {
            self.release();
            fence(Ordering::SeqCst);
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
