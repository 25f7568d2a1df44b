//! Runs admitted groups, and starts further groups when one finishes.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use futures::FutureExt;

use super::Engine;
use super::admission::AdmittedGroup;
use super::group::{GroupTask, run_group};
use super::state::{EngineState, FinishedGroup};
use super::trace::CpuCharged;

impl Engine {
    /// Starts as many groups as the budget allows.
    pub(crate) fn pump(self: &Arc<Self>) {
        self.pump_locked(self.lock());
    }

    pub(super) fn pump_locked(self: &Arc<Self>, mut state: MutexGuard<'_, EngineState>) {
        let admitted = self.admit(&mut state);
        let has_room_again = self.has_reported_full.load(Ordering::Relaxed) && !self.is_full(&state);
        drop(state);
        for group in admitted {
            let engine = Arc::clone(self);
            self.tasks.spawn(async move { engine.run(group).await });
        }
        if has_room_again {
            self.has_reported_full.store(false, Ordering::Relaxed);
            self.news.notify_waiters();
        }
    }

    /// Starts groups when readers release buffers. Runs until it is dropped.
    pub(crate) async fn start_groups_on_release(self: Arc<Self>) {
        loop {
            self.resources.slabs.returned.notified().await;
            self.pump();
        }
    }

    async fn run(self: Arc<Self>, admitted: AdmittedGroup) {
        let AdmittedGroup { job, split, offsets, generation, .. } = admitted;
        let finished = FinishedGroup { job: job.id(), split, generation, start: offsets.start };
        let work = run_group(GroupTask {
            job: Arc::clone(&job),
            resources: self.resources.clone(),
            context: admitted.context,
            split,
            offsets,
            planned: admitted.planned,
        });
        // A decoder that panics fails its rows, not the worker.
        let work = AssertUnwindSafe(work).catch_unwind();
        let work = CpuCharged::new(work, &job.counters.source, &self.tracing.clock);
        let result = admitted.cancel.run_until_cancelled(work).await;
        let crashed = |_| Err("a decoder crashed on these rows; please report this".to_owned());
        let result = result.map(|result| result.unwrap_or_else(crashed));
        let mut state = self.lock();
        state.groups -= 1;
        drop(admitted.encoded);
        state.exceeds &= !admitted.exceeds;
        let computed_before = state.leases.computed().len();
        if let Some(result) = result {
            state.finish_group(&finished, result);
        }
        let has_computed = state.leases.computed().len() > computed_before;
        self.pump_locked(state);
        if has_computed {
            self.news.notify_waiters();
        }
    }
}
