//! Events of fetches and groups, which the thread that holds the engine's lock applies to the state.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use tokio::sync::oneshot;

use super::Engine;
use super::fetches::OpenFetch;
use super::piece::StreamPieces;
use super::state::EngineState;

/// Rounds of events that one thread applies before it leaves the next ones to the engine's own task.
const ROUNDS_MAX: usize = 32;

pub(super) enum EngineEvent {
    /// A consumer opens a fetch.
    FetchRequested(FetchRequest),
    /// A report reads the state.
    Read(Box<dyn FnOnce(&mut EngineState) + Send>),
    /// Readers have released memory, so that a group that did not fit may start.
    MemoryReleased,
    /// A fetch has changed its split.
    SplitChanged(JobId, SplitRef),
    /// A group has ended; without a result if its lease was revoked.
    GroupEnded(EndedGroup, Option<Result<Vec<StreamPieces>, String>>),
}

/// A fetch that is opened as soon as the lease of its split has arrived.
pub(super) struct FetchRequest {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    /// The first offset to deliver.
    pub(super) from: u32,
    pub(super) reply: oneshot::Sender<OpenFetch>,
}

/// A group that has ended.
pub(super) struct EndedGroup {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    /// The generation of the split when the group started.
    pub(super) generation: u64,
    /// First offset of the group in the split.
    pub(super) start: u32,
    /// Whether the group exceeded the memory budget.
    pub(super) exceeds: bool,
}

impl Engine {
    /// Adds an event, which this thread applies unless another thread holds the lock.
    pub(super) fn post(self: &Arc<Self>, event: EngineEvent) {
        match self.state.add_event(event) {
            Some(state) => self.pump_locked(state),
            None => self.apply_events(),
        }
    }

    /// Reads the state without waiting for the lock on this thread.
    pub(super) async fn read_state<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&mut EngineState) -> T + Send + 'static,
    ) -> T {
        let (reply, value) = oneshot::channel();
        // The receiver is dropped if the caller is cancelled.
        self.post(EngineEvent::Read(Box::new(move |state| drop(reply.send(read(state))))));
        value.await.expect("the engine applies every event")
    }

    /// Applies waiting events while no other thread holds the lock.
    pub(super) fn apply_events(self: &Arc<Self>) {
        for _ in 0..ROUNDS_MAX {
            let Some(state) = self.state.lock_for_events() else { return };
            self.pump_once(state);
        }
        self.state.has_events.notify_one();
    }
}

impl EngineState {
    pub(super) fn apply(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::FetchRequested(request) => self.open_fetch(request),
            EngineEvent::Read(read) => read(self),
            EngineEvent::MemoryReleased => {}
            EngineEvent::SplitChanged(job, split) => _ = self.leases.update(job, split, |_| ()),
            EngineEvent::GroupEnded(group, result) => {
                self.groups -= 1;
                self.exceeds &= !group.exceeds;
                if let Some(result) = result {
                    self.finish_group(&group, result);
                }
            }
        }
    }

    /// Opens a fetch, or keeps the request until the lease arrives.
    pub(super) fn open_fetch(&mut self, request: FetchRequest) {
        let FetchRequest { job, split, from, .. } = request;
        let Some(shared) = self.leases.shared(job, split) else {
            self.arrivals.entry((job, split)).or_default().push(request);
            return;
        };
        self.next_fetch += 1;
        let number = self.next_fetch;
        let changed = self.leases.update(job, split, |lease| {
            lease.open_fetch(number, from);
            Arc::clone(&lease.changed)
        });
        let Some(changed) = changed else { return };
        // The fetch closes itself if the consumer has disconnected.
        let _ = request.reply.send(OpenFetch { job, split, number, changed, shared });
    }
}
