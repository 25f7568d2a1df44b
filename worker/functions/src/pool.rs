//! A pool of threads that own one function process each. The system kills a process when its thread exits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::FunctionProcess;

/// A process exits after this time without work. Later work starts a new process.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Work of a thread with its process. The work may start and stop the process.
pub(crate) type ProcessWork = Box<dyn FnOnce(&mut Option<FunctionProcess>) + Send>;

/// A pool that starts threads on demand, up to a maximum.
#[derive(Debug)]
pub(crate) struct ProcessPool {
    shared: Arc<Shared>,
    max_processes: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when work arrives or the pool closes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Pending work. The queue is bounded, because the engine limits the number of concurrent chunks.
    queue: VecDeque<ProcessWork>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("queue", &self.queue.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessPool {
    /// Creates a pool without threads.
    pub(crate) fn new(max_processes: usize) -> Self {
        Self { shared: Arc::default(), max_processes: max_processes.max(1) }
    }

    /// Queues work for a thread.
    ///
    /// # Errors
    /// Returns an error if no thread exists and the system cannot start one.
    pub(crate) fn submit(&self, work: ProcessWork) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.queue.push_back(work);
        if state.queue.len() > state.idle && state.threads < self.max_processes {
            let shared = Arc::clone(&self.shared);
            let started =
                std::thread::Builder::new().name("feedline-py".to_owned()).spawn(move || serve(&shared));
            match started {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.queue.pop_back();
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// Runs the work of the queue until the pool closes or is idle.
fn serve(shared: &Shared) {
    let mut process = None;
    while let Some(work) = next_work(shared) {
        // After a panic, drop the process. The caller receives an error because the answer's sender was dropped.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut process)));
        if done.is_err() {
            process = None;
        }
    }
}

/// Waits for work. Returns `None` if the pool is closed or idle.
fn next_work(shared: &Shared) -> Option<ProcessWork> {
    let mut state = shared.lock();
    loop {
        if let Some(work) = state.queue.pop_front() {
            return Some(work);
        }
        if state.closed {
            break;
        }
        state.idle += 1;
        let (woken, waited) =
            shared.changed.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
        state = woken;
        state.idle -= 1;
        if waited.timed_out() && state.queue.is_empty() {
            break;
        }
    }
    state.threads -= 1;
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn the_number_of_threads_is_limited_and_threads_survive_panics() {
        let pool = ProcessPool::new(2);
        let (sender, receiver) = sync_channel(64);
        for number in 0..20 {
            let sender = sender.clone();
            let work = move |_: &mut Option<FunctionProcess>| {
                assert!(number % 5 != 0, "a panic in the work");
                let _ = sender.send((number, std::thread::current().id()));
            };
            pool.submit(Box::new(work)).unwrap();
        }
        let done: Vec<_> = (0..16).map(|_| receiver.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        let threads: std::collections::HashSet<_> = done.iter().map(|(_, thread)| *thread).collect();
        assert!(threads.len() <= 2, "{threads:?}");
        drop(pool);
        drop(sender);
        assert!(
            receiver.recv_timeout(Duration::from_secs(20)).is_err(),
            "pending work is dropped with the pool"
        );
    }
}
