//! How a build runs: its memory, its threads, and work on numbered items in parallel.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::node_ranking::NodeRanking;
use crate::error::GraphError;

/// How a build runs.
#[derive(Clone)]
pub struct BuildSettings {
    /// The memory for buffers, sorting and tables of nodes.
    pub memory_bytes: u64,
    /// The number of threads.
    pub threads: usize,
    /// Stops the build when it is set.
    pub stop: Arc<AtomicBool>,
    /// Receives the name of each step when it starts.
    pub on_step: Arc<dyn Fn(&str) + Send + Sync>,
    /// The model for the order `vip`; `None` rejects this order.
    pub ranking: Option<Arc<dyn NodeRanking>>,
}

impl std::fmt::Debug for BuildSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildSettings")
            .field("memory_bytes", &self.memory_bytes)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl BuildSettings {
    /// Creates settings for a build that is not stopped, reports no steps and has no model.
    pub fn new(memory_bytes: u64, threads: usize) -> Self {
        Self {
            memory_bytes,
            threads: threads.max(1),
            stop: Arc::default(),
            on_step: Arc::new(|_: &str| {}),
            ranking: None,
        }
    }

    /// Returns an error if the caller has stopped the build.
    pub(super) fn check_stop(&self) -> Result<(), GraphError> {
        if self.stop.load(Ordering::Relaxed) { Err(GraphError::Interrupted) } else { Ok(()) }
    }

    /// The share of the memory that each of the threads may use.
    pub(super) fn thread_bytes(&self) -> u64 {
        self.memory_bytes / self.threads as u64
    }

    /// Calls `work` for each index below `count`, from several threads, in ascending order of the start. `create` makes the state
    /// of a thread. Returns the states.
    ///
    /// # Errors
    /// Returns the first error. The threads then start no other index.
    pub(super) fn for_each_index<S: Send>(
        &self,
        threads: usize,
        count: usize,
        create: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, usize) -> Result<(), GraphError> + Sync,
    ) -> Result<Vec<S>, GraphError> {
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let run = || {
            let mut state = create();
            while !has_failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                if let Err(error) = work(&mut state, index) {
                    has_failed.store(true, Ordering::Relaxed);
                    store_failure(&mut lock(&failure), error);
                }
            }
            state
        };
        let states = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(run)).collect();
            let mut states = vec![run()];
            states.extend(
                others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
            );
            states
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(states),
        }
    }
}

/// Keeps the first error. The threads that wait for a failed thread report that they were interrupted, which is not the cause.
fn store_failure(failure: &mut Option<GraphError>, error: GraphError) {
    if matches!(failure, None | Some(GraphError::Interrupted)) {
        *failure = Some(error);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that work on numbered items in parallel, and write the results in order.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    next: usize,
    has_failed: bool,
}

/// The turn of one item. If it is dropped before it is finished, all later turns fail.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    index: usize,
    is_finished: bool,
}

impl Turns {
    /// Returns the turn of an item. Each item must have one.
    pub(super) fn turn(&self, index: usize) -> Turn<'_> {
        Turn { turns: self, index, is_finished: false }
    }
}

impl Turn<'_> {
    /// Waits until all earlier items are finished.
    ///
    /// # Errors
    /// Returns an error if an earlier item failed.
    pub(super) fn wait(&self) -> Result<(), GraphError> {
        let mut state = lock(&self.turns.state);
        while state.next < self.index && !state.has_failed {
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.has_failed { Err(GraphError::Interrupted) } else { Ok(()) }
    }

    /// Starts the turn of the next item.
    pub(super) fn finish(mut self) {
        self.is_finished = true;
        lock(&self.turns.state).next += 1;
        self.turns.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            lock(&self.turns.state).has_failed = true;
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_written_in_order() {
        let settings = BuildSettings::new(1 << 20, 4);
        let (turns, written) = (Turns::default(), Mutex::new(Vec::new()));
        let work = |seen: &mut Vec<usize>, index: usize| {
            let turn = turns.turn(index);
            seen.push(index);
            turn.wait()?;
            lock(&written).push(index);
            turn.finish();
            Ok(())
        };
        let states = settings.for_each_index(4, 100, Vec::new, work).unwrap();
        assert_eq!(lock(&written).as_slice(), (0..100).collect::<Vec<_>>());
        assert_eq!(states.iter().map(Vec::len).sum::<usize>(), 100);
    }

    #[test]
    fn the_cause_of_a_failure_is_returned_and_no_thread_waits_for_ever() {
        let settings = BuildSettings::new(1 << 20, 4);
        let turns = Turns::default();
        let work = |_: &mut (), index: usize| {
            let turn = turns.turn(index);
            if index == 3 {
                return Err(GraphError::Setting("three".to_owned()));
            }
            turn.wait()?;
            turn.finish();
            Ok(())
        };
        let failed = settings.for_each_index(4, 100, || (), work);
        assert_eq!(failed.unwrap_err(), GraphError::Setting("three".to_owned()));
    }

    #[test]
    fn a_stopped_build_is_interrupted() {
        let settings = BuildSettings::new(1 << 20, 2);
        assert_eq!(settings.check_stop(), Ok(()));
        settings.stop.store(true, Ordering::Relaxed);
        assert_eq!(settings.check_stop(), Err(GraphError::Interrupted));
    }
}
