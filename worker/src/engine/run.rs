//! Runs admitted groups, and starts more groups when a group finishes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use tokio::sync::oneshot;

use super::Engine;
use super::admission::AdmittedGroup;
use super::events::EngineEvent;
use super::group::{GroupTask, run_group};
use super::lock::StateGuard;
use super::state::{EndedGroup, EngineState};
use super::trace::CpuCharged;

/// Maximum number of times that a thread applies queued events before it leaves further events to the engine's
/// background task.
const ROUNDS_MAX: usize = 32;

impl Engine {
    /// Adds an event to the queue. This thread applies the event, unless another thread holds the lock.
    pub(super) fn post(self: &Arc<Self>, event: EngineEvent) {
        match self.state.add_event(event) {
            Some(state) => self.pump_locked(state),
            None => self.apply_events(),
        }
    }

    /// Reads the state without blocking this thread on the lock.
    pub(super) async fn read_state<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&mut EngineState) -> T + Send + 'static,
    ) -> T {
        let (reply, value) = oneshot::channel();
        // Sending fails if the caller was cancelled.
        self.post(EngineEvent::Read(Box::new(move |state| drop(reply.send(read(state))))));
        value.await.expect("the engine applies every event")
    }

    /// Applies queued events until the queue is empty or another thread holds the lock.
    pub(super) fn apply_events(self: &Arc<Self>) {
        for _ in 0..ROUNDS_MAX {
            let Some(state) = self.state.lock_for_events() else { return };
            self.pump_once(state);
        }
        self.state.has_events.notify_one();
    }

    /// Starts groups that did not fit the memory budget before.
    pub(crate) fn on_memory_released(self: &Arc<Self>) {
        self.post(EngineEvent::MemoryReleased);
    }

    /// Applies queued events, and starts as many groups as the memory budget allows.
    pub(super) fn pump_locked(self: &Arc<Self>, state: StateGuard<'_>) {
        self.pump_once(state);
        self.apply_events();
    }

    /// Applies queued events and starts groups once. The lock is released before the groups run.
    pub(super) fn pump_once(self: &Arc<Self>, mut state: StateGuard<'_>) {
        state.apply_events();
        let has_computed = state.leases.take_new_computed();
        let admitted = self.admit(&mut state);
        let has_room_again = self.has_reported_full.load(Ordering::Relaxed) && !self.is_full(&state);
        if has_room_again {
            self.has_reported_full.store(false, Ordering::Relaxed);
        }
        state.unlock();
        for group in admitted {
            let engine = Arc::clone(self);
            self.tasks.spawn(async move { engine.run(group).await });
        }
        if has_room_again || has_computed {
            self.report_due.notify_waiters();
        }
    }

    /// Starts groups when consumers release buffers, and applies events that no other thread applies. Runs until the
    /// future is dropped.
    pub(crate) async fn start_groups_on_release(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.resources.slabs.returned.notified() => self.on_memory_released(),
                () = self.state.has_events.notified() => self.apply_events(),
            }
        }
    }

    async fn run(self: Arc<Self>, admitted: AdmittedGroup) {
        let AdmittedGroup { job, split, offsets, generation, .. } = admitted;
        let (start, exceeds_budget) = (offsets.start, admitted.exceeds_budget);
        let ended = EndedGroup { job: job.id(), split, generation, start, exceeds_budget };
        let work = run_group(GroupTask {
            job: Arc::clone(&job),
            resources: self.resources.clone(),
            context: admitted.context,
            split,
            offsets,
            buffer_reservation: admitted.buffer_reservation,
            is_given_up: admitted.is_given_up,
        });
        // If a decoder panics, the group fails, but the worker continues.
        let work = AssertUnwindSafe(work).catch_unwind();
        let work = CpuCharged::new(work, &job.counters.source, &self.tracing.clock);
        let result = admitted.cancel.run_until_cancelled(work).await;
        let crashed = |_| Err("a decoder crashed on these rows; please report this".to_owned());
        let result = result.map(|result| result.unwrap_or_else(crashed));
        drop(admitted.encoded_reservation);
        self.post(EngineEvent::GroupEnded(ended, result));
    }
}
