//! The order of a job's rows, computed once for each pass.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use feedline_data::layout::Layout;
use feedline_data::mix::MixChange;
use feedline_data::order::RowRef;
use feedline_data::sequence::{Sequence, SharedPass};

/// Number of passes whose row order stays in memory. Only neighbouring epochs overlap.
const CACHED_PASSES: usize = 3;

pub(crate) struct RowOrder(Mutex<State>);

struct State {
    sequence: Arc<Sequence>,
    passes: VecDeque<(u32, SharedPass)>,
}

impl State {
    fn new(sequence: Sequence) -> Self {
        Self { sequence: Arc::new(sequence), passes: VecDeque::new() }
    }

    fn pass(&mut self, pass: u32) -> SharedPass {
        if let Some((_, order)) = self.passes.iter().find(|(number, _)| *number == pass) {
            return order.clone();
        }
        let order = self.sequence.pass(pass);
        if self.passes.len() == CACHED_PASSES {
            self.passes.pop_front();
        }
        self.passes.push_back((pass, order.clone()));
        order
    }
}

impl RowOrder {
    pub(crate) fn new(sequence: Sequence) -> Self {
        Self(Mutex::new(State::new(sequence)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the order")
    }

    /// Returns the rows at these indexes in the row sequence of an epoch.
    pub(crate) fn rows(&self, layout: &Layout, epoch: u32, indexes: Range<u64>) -> Vec<RowRef> {
        let mut rows = Vec::with_capacity((indexes.end - indexes.start) as usize);
        let mut start = indexes.start;
        while start < indexes.end {
            let pass = start / layout.dataset_rows;
            let base = pass * layout.dataset_rows;
            let end = indexes.end.min(base + layout.dataset_rows);
            let (sequence, order) = self.pass(epoch * layout.passes + pass as u32);
            rows.extend(sequence.rows(&order, start - base..end - base));
            start = end;
        }
        rows
    }

    fn pass(&self, pass: u32) -> (Arc<Sequence>, SharedPass) {
        let mut state = self.lock();
        let order = state.pass(pass);
        (Arc::clone(&state.sequence), order)
    }

    /// Applies changes to the mix weights. They affect only rows for which no lease has been granted.
    pub(crate) fn set_mix(&self, changes: &[MixChange]) {
        let mut state = self.lock();
        if state.sequence.changes() != changes {
            *state = State::new(state.sequence.with_mix_changes(changes));
        }
    }
}
