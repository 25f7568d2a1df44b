//! The CPU pool: as many threads as the worker has cores; the work nearest to a consumer runs first.

use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::process::POOL_THREADS;

/// What runs first: the smaller. Groups count up as they are started, the most urgent first.
pub(crate) type Priority = u64;

/// An operator panicked; the pool lives on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an operator crashed: {0}; please report this")]
pub(crate) struct Panicked(pub(crate) String);

pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// Bounded by the groups in flight, which admission bounds in bytes.
#[derive(Default)]
struct Queue {
    work: BinaryHeap<Work>,
    order: u64,
    closed: bool,
}

struct Work {
    priority: Priority,
    order: u64,
    run: Box<dyn FnOnce() + Send>,
}

impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The heap gives the greatest first; the most urgent work is the smallest.
        (other.priority, other.order).cmp(&(self.priority, self.order))
    }
}

impl PartialOrd for Work {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Work {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Work {}

impl Pool {
    pub(crate) fn new(threads: u32) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new() });
        let threads = (0..threads.max(1))
            .map(|number| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("{POOL_THREADS}-{number}"))
                    .spawn(move || shared.run_until_closed())
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// Runs `work` on the pool. If the caller stops waiting before it began, it is not run.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        priority: Priority,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (sender, receiver) = oneshot::channel();
        let run = Box::new(move || {
            if !sender.is_closed() {
                let result = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic));
                // Nobody waits any more: the lease was taken back meanwhile.
                let _ = sender.send(result);
            }
        });
        self.shared.push(priority, run);
        receiver.await.unwrap_or_else(|_| Err(Panicked("the pool is closing".to_owned())))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            // Work never unwinds out of the thread's loop, so there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no code panics while it holds the queue")
    }

    fn push(&self, priority: Priority, run: Box<dyn FnOnce() + Send>) {
        let mut queue = self.lock();
        queue.order += 1;
        let order = queue.order;
        queue.work.push(Work { priority, order, run });
        drop(queue);
        self.ready.notify_one();
    }

    fn run_until_closed(&self) {
        loop {
            let mut queue = self.lock();
            let work = loop {
                if queue.closed {
                    return;
                }
                if let Some(work) = queue.work.pop() {
                    break work;
                }
                queue = self.ready.wait(queue).expect("no code panics while it holds the queue");
            };
            drop(queue);
            (work.run)();
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> Panicked {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    Panicked(text.unwrap_or_else(|| "no message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_pool_lives_on() {
        let pool = Pool::new(1).expect("threads start");
        let error = pool.run(0, || panic!("bad pixel")).await.expect_err("it panicked");
        assert_eq!(error, Panicked("bad pixel".to_owned()));
        assert_eq!(pool.run(0, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn the_most_urgent_work_runs_first() {
        let pool = Pool::new(1).expect("threads start");
        let (hold, held) = std::sync::mpsc::sync_channel::<()>(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let blocker = pool.run(0, move || held.recv().is_ok());
        let rest: Vec<_> = [3, 1, 2]
            .map(|number| {
                let order = Arc::clone(&order);
                pool.run(number, move || order.lock().expect("not poisoned").push(number))
            })
            .into();
        let release = async {
            tokio::task::yield_now().await;
            hold.send(()).expect("the blocker waits");
        };
        let _ = futures::join!(blocker, futures::future::join_all(rest), release);
        assert_eq!(*order.lock().expect("not poisoned"), [1, 2, 3]);
    }
}
