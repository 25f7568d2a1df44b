//! Events that fetches and groups produce. The thread that holds the engine's lock applies them to the state.

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;

use super::piece::StreamPieces;
use super::state::{EndedGroup, EngineState, PendingFetch};

pub(super) enum EngineEvent {
    /// A consumer has requested a fetch.
    FetchRequested(PendingFetch),
    /// A caller reads the state, for example for a report.
    Read(Box<dyn FnOnce(&mut EngineState) + Send>),
    /// Consumers have released memory, so a group that did not fit before may start.
    MemoryReleased,
    /// A fetch has changed the state of its split.
    SplitChanged(JobId, SplitRef),
    /// A group has ended. The result is `None` if the lease of the group was revoked.
    GroupEnded(EndedGroup, Option<Result<Vec<StreamPieces>, String>>),
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
                self.has_exceeding_group &= !group.exceeds_budget;
                if let Some(result) = result {
                    self.finish_group(&group, result);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_group_that_exceeds_the_budget_lets_another_exceed_it() {
        let mut state = EngineState::default();
        (state.groups, state.has_exceeding_group) = (2, true);
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        let mut end = |exceeds_budget| {
            let group = EndedGroup { job: JobId(1), split, generation: 0, start: 0, exceeds_budget };
            state.apply(EngineEvent::GroupEnded(group, None));
            (state.groups, state.has_exceeding_group)
        };
        assert_eq!([end(false), end(true)], [(1, true), (0, false)]);
    }
}
