//! Threads that each own one function process. A process lives as long as its thread, since the system ends it with that.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::FunctionProcess;

/// A process that has had no work for this long is ended; the next work starts one anew.
const IDLE: Duration = Duration::from_secs(30);

/// What a thread does with its process, which it may have to start, and may end.
pub(crate) type ProcessWork = Box<dyn FnOnce(&mut Option<FunctionProcess>) + Send>;

/// As many threads as are needed, up to a number.
#[derive(Debug)]
pub(crate) struct ProcessPool {
    shared: Arc<Shared>,
    most: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Woken when there is work, or none will come any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// As long as there are chunks that the engine lets through at a time.
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
    /// At most `most` processes, none yet.
    pub(crate) fn new(most: usize) -> Self {
        Self { shared: Arc::default(), most: most.max(1) }
    }

    /// Has one of the threads do this.
    ///
    /// # Errors
    /// When the system refuses to start a thread, and there is none that could do it.
    pub(crate) fn submit(&self, work: ProcessWork) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.queue.push_back(work);
        if state.queue.len() > state.idle && state.threads < self.most {
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

/// A thread's life.
fn serve(shared: &Shared) {
    let mut process = None;
    while let Some(work) = next(shared) {
        // What panics loses its process, and whoever waits for it sees that nobody answers.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut process)));
        if done.is_err() {
            process = None;
        }
    }
}

/// The next work; `None` when none comes any more, or none has come for long.
fn next(shared: &Shared) -> Option<ProcessWork> {
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
            shared.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
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
    fn no_more_threads_than_allowed_and_a_panic_ends_none() {
        let pool = ProcessPool::new(2);
        let (sender, receiver) = sync_channel(64);
        for number in 0..20 {
            let sender = sender.clone();
            let work = move |_: &mut Option<FunctionProcess>| {
                assert!(number % 5 != 0, "as a decoder might");
                let _ = sender.send((number, std::thread::current().id()));
            };
            pool.submit(Box::new(work)).unwrap();
        }
        let done: Vec<_> = (0..16).map(|_| receiver.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        let threads: std::collections::HashSet<_> = done.iter().map(|(_, thread)| *thread).collect();
        assert!(threads.len() <= 2, "{threads:?}");
        drop(pool);
        drop(sender);
        assert!(receiver.recv_timeout(Duration::from_secs(20)).is_err(), "work that is left is dropped");
    }
}
