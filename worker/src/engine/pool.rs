//! The CPU pool: one thread for each core of the worker, or fewer if the plan limits the threads. Jobs share the
//! threads in proportion to their allocations, and the most urgent work of a job runs first.

mod queue;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use feedline_data::ids::JobId;
use feedline_operators::DecodeMemory;
use tokio::sync::oneshot;

pub(crate) use self::queue::Priority;
use self::queue::{NextWork, WorkQueue};
use crate::process::POOL_THREAD_PREFIX;

/// Minimum wait in seconds until limited work may start. Shorter waits are useless because waking a thread takes this
/// long.
const MIN_WAIT_SECONDS: f64 = 5e-5;

/// An operator panicked. The pool continues to run other work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an operator crashed: {0}; please report this")]
pub(crate) struct TaskPanic(pub(crate) String);

pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    started: Instant,
    state: Mutex<State>,
    ready: Condvar,
    idle: Arc<IdleThreads>,
}

/// The number of idle threads.
#[derive(Debug, Default)]
pub(crate) struct IdleThreads {
    waiting: AtomicU32,
    /// Number of threads that the plan does not use.
    unused: AtomicU32,
}

impl IdleThreads {
    /// Whether any thread waits for work, not counting unused threads.
    pub(crate) fn is_any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > self.unused.load(Ordering::Relaxed)
    }
}

type Work = Box<dyn FnOnce() + Send>;

struct State {
    queue: WorkQueue<Work>,
    /// Number of threads that are running work.
    busy: u32,
    /// Maximum number of threads that may run work at the same time.
    in_use: u32,
    /// The time at which work of a limited job may start, if an idle thread waits for that time.
    watched: Option<f64>,
    closed: bool,
}

impl State {
    /// Whether an idle thread must wake up, either to run work that may start at `now`, or to wait for an earlier start
    /// time than `watched`.
    fn needs_thread(&self, now: f64) -> bool {
        let start = self.queue.next_start(now);
        start.is_some_and(|at| at <= now || self.watched.is_none_or(|watched| at < watched))
    }
}

impl Pool {
    /// Starts the threads. `decoding` limits the memory that image decoding uses on all threads together.
    pub(crate) fn new(threads: u32, decoding: &Arc<DecodeMemory>) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let state =
            State { queue: WorkQueue::new(threads), busy: 0, in_use: threads, watched: None, closed: false };
        let shared = Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::new(state),
            ready: Condvar::new(),
            idle: Arc::default(),
        });
        let threads = (0..threads)
            .map(|number| {
                let (shared, decoding) = (Arc::clone(&shared), Arc::clone(decoding));
                std::thread::Builder::new().name(format!("{POOL_THREAD_PREFIX}-{number}")).spawn(move || {
                    decoding.attach_thread();
                    shared.run_until_closed();
                })
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// Limits the pool to `threads` threads, or removes the limit if `threads` is 0. Running work continues. Threads
    /// are divided among jobs with work in proportion to `shares`. All jobs without a share together have one share,
    /// equal to the number of threads. On average, a job in `limits` never uses more threads than its limit, even if
    /// other threads are idle.
    pub(crate) fn set_shares(
        &self,
        threads: u32,
        shares: BTreeMap<JobId, f64>,
        limits: BTreeMap<JobId, f64>,
    ) {
        let all = self.threads.len() as u32;
        let mut state = self.shared.lock();
        state.in_use = if threads == 0 { all } else { threads.min(all) };
        self.shared.idle.unused.store(all - state.in_use, Ordering::Relaxed);
        let now = self.shared.now();
        state.queue.set_shares(now, shares, limits);
        drop(state);
        self.shared.ready.notify_all();
    }

    /// The idle threads.
    pub(crate) fn idle(&self) -> Arc<IdleThreads> {
        Arc::clone(&self.shared.idle)
    }

    /// Runs `work` of a job on the pool. If the caller is cancelled before the work starts, the work does not run.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: JobId,
        priority: Priority,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TaskPanic> {
        let (sender, receiver) = oneshot::channel();
        let run = Box::new(move || {
            if !sender.is_closed() {
                let result = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic));
                // The receiver is dropped when the lease is revoked.
                let _ = sender.send(result);
            }
        });
        self.shared.push(job, priority, run);
        receiver.await.unwrap_or_else(|_| Err(TaskPanic("the pool is closing".to_owned())))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            // Panics are caught where work runs, so joining the thread never returns an error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the queue")
    }

    fn push(&self, job: JobId, priority: Priority, work: Work) {
        let mut state = self.lock();
        state.queue.push(job, priority, work);
        self.wake(state);
    }

    /// Releases the queue lock, and wakes an idle thread if there is work. Busy threads check the queue when they
    /// finish their work.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let wakes = self.idle.is_any() && state.needs_thread(self.now());
        drop(state);
        if wakes {
            self.ready.notify_one();
        }
    }

    /// Seconds since the pool started.
    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Waits for work. Waits at most until `start`, unless another thread already waits for an earlier time.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, start: Option<f64>) -> MutexGuard<'a, State> {
        let sound = "no thread panics while it holds the queue";
        let start = start.filter(|at| state.watched.is_none_or(|watched| *at < watched));
        self.idle.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = match start {
            Some(at) => {
                state.watched = start;
                self.ready.wait_timeout(state, time_until(at, self.now())).expect(sound).0
            }
            None => self.ready.wait(state).expect(sound),
        };
        self.idle.waiting.fetch_sub(1, Ordering::Relaxed);
        // By now, another thread may wait for an earlier time.
        if start.is_some() && state.watched == start {
            state.watched = None;
        }
        state
    }

    fn run_until_closed(&self) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let now = self.now();
            let next = if state.busy < state.in_use { state.queue.pop(now) } else { NextWork::Nothing };
            let (running, work) = match next {
                NextWork::Work(running, work) => (running, work),
                NextWork::At(at) => {
                    state = self.wait(state, Some(at));
                    continue;
                }
                NextWork::Nothing => {
                    state = self.wait(state, None);
                    continue;
                }
            };
            state.busy += 1;
            // The thread that now runs this work may have been waiting for a start time, so another thread must take
            // over the wait.
            self.wake(state);
            let begun = Instant::now();
            work();
            let seconds = begun.elapsed().as_secs_f64();
            state = self.lock();
            state.busy -= 1;
            state.queue.finish(running, seconds);
        }
    }
}

/// Returns the time from `now` until `start`, at most one second. Both are in seconds since the pool started.
fn time_until(start: f64, now: f64) -> Duration {
    Duration::from_secs_f64((start - now).clamp(MIN_WAIT_SECONDS, 1.0))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> TaskPanic {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    TaskPanic(text.unwrap_or_else(|| "no message".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    #[test]
    fn a_thread_waits_until_limited_work_may_start() {
        let seconds = [(10.25, 10.0), (9.0, 10.0), (20.0, 10.0)]
            .map(|(start, now)| time_until(start, now).as_secs_f64());
        assert_eq!(seconds, [0.25, MIN_WAIT_SECONDS, 1.0]);
    }

    /// Longest wait for anything in these tests: a hang fails the test.
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn pool(threads: u32) -> Pool {
        Pool::new(threads, &DecodeMemory::new(0)).expect("threads start")
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error_and_the_pool_continues() {
        let pool = pool(1);
        let error = pool.run(JobId(1), 0, || panic!("bad pixel")).await.expect_err("it panicked");
        assert_eq!(error, TaskPanic("bad pixel".to_owned()));
        assert_eq!(pool.run(JobId(1), 0, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn the_most_urgent_work_runs_first() {
        let pool = pool(1);
        let (hold, held) = std::sync::mpsc::sync_channel::<()>(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let blocker = pool.run(JobId(1), 0, move || held.recv().is_ok());
        let rest: Vec<_> = [3, 1, 2]
            .map(|number| {
                let order = Arc::clone(&order);
                pool.run(JobId(number % 2), number, move || order.lock().expect("not poisoned").push(number))
            })
            .into();
        let release = async {
            tokio::task::yield_now().await;
            hold.send(()).expect("the blocker waits");
        };
        let _ = futures::join!(blocker, futures::future::join_all(rest), release);
        assert_eq!(*order.lock().expect("not poisoned"), [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_job_with_a_limit_finishes_and_leaves_threads_idle() {
        let pool = pool(2);
        pool.set_shares(0, BTreeMap::new(), [(JobId(1), 0.5)].into());
        let begun = Instant::now();
        let work = (0..20).map(|_| pool.run(JobId(1), 0, || burn(Duration::from_millis(5))));
        let mut took = futures::future::try_join_all(work).await.expect("nothing panics");
        // The time of the last work would delay only later work.
        took.pop();
        let burnt: Duration = took.into_iter().sum();
        let most = begun.elapsed().mul_f64(0.5) + Duration::from_millis(120);
        assert!(burnt <= most, "{burnt:?} in {:?}", begun.elapsed());
    }

    #[test]
    fn threads_wake_for_work_that_may_start_and_once_for_a_start_time() {
        let mut state = State { queue: WorkQueue::new(4), busy: 0, in_use: 4, watched: None, closed: false };
        assert!(!state.needs_thread(0.0), "the queue is empty");
        state.queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), 1.0), (JobId(2), 1.0)].into());
        let work = || Box::new(|| ()) as Work;
        (0..3).for_each(|_| state.queue.push(JobId(1), 0, work()));
        assert!(state.needs_thread(0.0));
        let NextWork::Work(running, _) = state.queue.pop(0.0) else { panic!("the work may start") };
        assert!(!state.needs_thread(0.0), "the job has reached its limit");
        state.queue.finish(running, 0.5);
        let NextWork::At(at) = state.queue.pop(0.0) else { panic!("the job has used its limit") };
        assert!(state.needs_thread(0.0), "no thread waits for the time");
        state.watched = Some(at);
        assert!(!state.needs_thread(0.0), "a thread waits, and another would be idle");
        assert!(state.needs_thread(at), "the time has come");
        state.watched = Some(at + 1.0);
        assert!(state.needs_thread(0.0), "another thread waits for a later time");
        state.watched = Some(at);
        state.queue.push(JobId(2), 0, work());
        assert!(state.needs_thread(0.0), "other work may start");
    }

    /// A thread that waits for the start time of limited work gets long work instead: another thread must wait for the time.
    #[test]
    fn limited_work_starts_in_time_if_the_waiting_thread_gets_other_work() {
        for _ in 0..3 {
            let pool = pool(2);
            pool.set_shares(0, BTreeMap::new(), [(JobId(1), 0.1)].into());
            let (ended, ends) = sync_channel(2);
            let push_limited = || {
                let ended = ended.clone();
                let work = move || {
                    burn(Duration::from_millis(30));
                    // The receiver is dropped when the test fails.
                    let _ = ended.send(());
                };
                pool.shared.push(JobId(1), 0, Box::new(work));
            };
            // The next limited work waits for at least a fifth of a second.
            push_limited();
            ends.recv_timeout(TIMEOUT).expect("the limit is unused");
            wait_until(&pool, |state| state.busy == 0);
            // One thread waits for the time; then one waits without a time.
            let release_first = push_blocking_work(&pool);
            wait_until(&pool, |state| state.busy == 1);
            push_limited();
            // On a slow machine the time may have come already; then the rest of the test shows nothing.
            wait_until(&pool, |state| state.watched.is_some() || state.queue.next_start(0.0).is_none());
            drop(release_first);
            wait_until(&pool, |_| pool.shared.idle.waiting.load(Ordering::Relaxed) == 2);
            // The thread that has waited longest gets this work.
            let release_other = push_blocking_work(&pool);
            ends.recv_timeout(TIMEOUT).expect("limited work starts");
            drop(release_other);
        }
    }

    /// Pushes work of a job without a limit. The work runs until the returned sender is dropped.
    fn push_blocking_work(pool: &Pool) -> SyncSender<()> {
        let (hold, held) = sync_channel(1);
        let work = move || {
            let _ = held.recv();
        };
        pool.shared.push(JobId(2), 0, Box::new(work));
        hold
    }

    /// Waits until the state of a pool satisfies a condition.
    fn wait_until(pool: &Pool, is_satisfied: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        loop {
            let state = pool.shared.lock();
            if is_satisfied(&state) {
                return;
            }
            drop(state);
            assert!(begun.elapsed() < TIMEOUT, "the condition is not satisfied in time");
            std::thread::yield_now();
        }
    }

    /// Uses CPU time, and returns the elapsed time.
    fn burn(time: Duration) -> Duration {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
        begun.elapsed()
    }

    #[tokio::test]
    async fn the_number_of_used_threads_changes_at_once() {
        let pool = pool(3);
        let running = Arc::new(AtomicU32::new(0));
        for threads in [1, 2, 0, 1] {
            pool.set_shares(threads, BTreeMap::new(), BTreeMap::new());
            let together = Arc::new(Mutex::new(0));
            let work = (0..24).map(|_| {
                let (running, together) = (Arc::clone(&running), Arc::clone(&together));
                pool.run(JobId(1), 0, move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    let mut most = together.lock().expect("not poisoned");
                    *most = now.max(*most);
                    drop(most);
                    (0..200).for_each(|_| std::thread::yield_now());
                    running.fetch_sub(1, Ordering::SeqCst);
                })
            });
            futures::future::try_join_all(work).await.expect("nothing panics");
            let most = *together.lock().expect("not poisoned");
            assert!(most <= if threads == 0 { 3 } else { threads }, "{most} of {threads}");
        }
    }
}
