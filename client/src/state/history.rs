//! Records the recent positions of a consumer, and answers the coordinator's queries for its position at a step. If the consumer has
//! not reached the step, the position is computed from batches that have arrived.

use feedline_data::checkpoint::{DeliveredRun, PositionHistory, StepLookup};
use feedline_data::consumer::RunKind;
use feedline_data::layout::Layout;
use tokio::time::Instant;

use super::ConsumerState;
use super::stream_state::{StreamState, next_stream};

/// Number of future batches in the history of a closing consumer, because other ranks may close several steps later.
const EXTRA_BATCHES_AT_CLOSE: u64 = 8;

impl ConsumerState {
    /// Starts a history at the first plan, if steps depend on the rows and the job has other consumers.
    pub(super) fn start_history(&mut self, consumers: u32, is_elastic: bool) {
        let Some(layout) = &self.layout else { return };
        let is_useful = consumers > 1 && !self.identity.is_relaxed && !is_elastic;
        if is_useful && layout.steps().is_none() && !layout.coordinated {
            let streams = self.streams.as_slice().iter();
            let start = streams.map(|stream| (stream.id, stream.position(layout))).collect();
            self.history_recorder.history = Some(PositionHistory::new(start));
        }
    }

    /// Records a run that was taken from a stream.
    pub(super) fn record_run(&mut self, index: usize, kind: RunKind, epoch: u32) {
        if let (Some(history), Some(layout)) = (&mut self.history_recorder.history, &self.layout) {
            history.push(delivered_run(self.streams.as_slice(), index, kind, epoch, layout));
        }
    }

    /// Records that the user prefetches one batch, so the training loop has not received the last delivered batch yet.
    pub(crate) fn set_prefetching(&mut self) {
        self.history_recorder.is_prefetching = true;
    }

    /// Answers the queries of the last plan whose steps have arrived.
    pub(crate) fn answer_queries(&mut self, now: Instant) {
        let queries = self.history_recorder.queries_to_check(now);
        if queries.is_empty() {
            return;
        }
        let is_open = |history: &PositionHistory, step| history.find(step) == StepLookup::NotReached;
        let extended = self.extended_history(|history| queries.iter().any(|step| is_open(history, *step)));
        let Some(history) = extended else { return };
        let open = queries.iter().filter(|step| is_open(&history, **step)).count();
        if open < queries.len() {
            self.history_recorder.set_answer(history, open > 0);
            self.reports.request_now();
        }
    }

    /// Adds the history to the last report, because a closed consumer answers no query.
    pub(crate) fn begin_closing(&mut self) {
        let Some(delivered) = self.history_recorder.history.as_ref().map(PositionHistory::batches) else {
            return;
        };
        let history = self.extended_history(|history| history.batches() < delivered + EXTRA_BATCHES_AT_CLOSE);
        self.history_recorder.begin_closing(history);
        self.reports.on_event();
    }

    /// Returns a copy of the history. Adds arrived batches to the copy while `is_wanted` returns `true`, without delivering them.
    fn extended_history(
        &self,
        mut is_wanted: impl FnMut(&PositionHistory) -> bool,
    ) -> Option<PositionHistory> {
        let (mut history, layout) = (self.history_recorder.history.clone()?, self.layout.as_ref()?);
        let is_last_prefetched =
            self.history_recorder.is_prefetching && !self.history_recorder.is_next_requested;
        history.add_prefetched(u64::from(is_last_prefetched));
        if self.streams.next_index().is_none() {
            history.complete();
        }
        if !is_wanted(&history) {
            return Some(history);
        }
        let mut streams = self.streams.as_slice().to_vec();
        while is_wanted(&history) {
            let Some(index) = next_stream(&streams, layout) else {
                history.complete();
                break;
            };
            let Some(run) = streams[index].assembler.next_run() else { break };
            history.push(delivered_run(&streams, index, run.kind, run.epoch, layout));
            history.add_prefetched(u64::from(run.kind == RunKind::Batch));
            for stream in &mut streams {
                stream.extend(layout, self.splits_ahead as usize);
            }
        }
        Some(history)
    }
}

fn delivered_run(
    streams: &[StreamState],
    index: usize,
    kind: RunKind,
    epoch: u32,
    layout: &Layout,
) -> DeliveredRun {
    let position = streams[index].position(layout);
    let batch_epoch = (kind == RunKind::Batch).then_some(epoch);
    DeliveredRun { stream_index: index as u32, position, batch_epoch }
}
