//! The CPU pool: as many threads as the worker has cores, or fewer where it is told so; jobs have shares of them, and the
//! work nearest to a consumer runs first.

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

use self::queue::{NextWork, WorkQueue};
use crate::process::POOL_THREADS;

/// Seconds below which no thread waits for a job's limit: waking takes as long.
const SHORTEST_WAIT: f64 = 5e-5;

/// What runs first: the smaller. Groups count up as they are started, the most urgent first, with room between them for
/// those that overtake.
pub(crate) type Priority = u64;

/// An operator panicked; the pool lives on.
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

/// Threads without work.
#[derive(Debug, Default)]
pub(crate) struct IdleThreads {
    waiting: AtomicU32,
    /// Those that shall not work.
    unused: AtomicU32,
}

impl IdleThreads {
    /// Whether a thread that may work waits for work.
    pub(crate) fn is_any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > self.unused.load(Ordering::Relaxed)
    }
}

type Work = Box<dyn FnOnce() + Send>;

struct State {
    queue: WorkQueue<Work>,
    /// Threads that work, and how many may.
    busy: u32,
    in_use: u32,
    /// The time that a thread without work waits for, when work may begin that has used its limit.
    watched: Option<f64>,
    closed: bool,
}

impl State {
    /// Whether a thread without work has something to do: work that may begin at `now`, or a time to wait for that is before the
    /// one that another waits for.
    fn calls(&self, now: f64) -> bool {
        let begins = self.queue.begins(now);
        begins.is_some_and(|at| at <= now || self.watched.is_none_or(|watched| at < watched))
    }
}

impl Pool {
    /// Images that its threads decode share the room.
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
                std::thread::Builder::new().name(format!("{POOL_THREADS}-{number}")).spawn(move || {
                    decoding.join();
                    shared.run_until_closed();
                })
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// Uses `threads` of its threads from now on, 0 meaning all; each finishes what it does. Jobs with work are served in
    /// proportion to their `shares`; those without one together count as all threads. None gets more threads on average than
    /// its limit in `limits`, however many are idle.
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

    /// Its threads without work.
    pub(crate) fn idle(&self) -> Arc<IdleThreads> {
        Arc::clone(&self.shared.idle)
    }

    /// Runs `work` of a job on the pool. If the caller stops waiting before it began, it is not run.
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
                // Nobody waits any more: the lease was taken back meanwhile.
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
            // Work never unwinds out of the thread's loop, so there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the queue")
    }

    fn push(&self, job: JobId, priority: Priority, work: Work) {
        let mut state = self.lock();
        state.queue.push(job, priority, work);
        self.wake(state);
    }

    /// Lets go of the queue, and wakes a thread without work if there is something for it. Threads that work look by themselves
    /// when they are done.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let wakes = self.idle.is_any() && state.calls(self.now());
        drop(state);
        if wakes {
            self.ready.notify_one();
        }
    }

    /// Seconds since the pool began.
    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Waits for work to come, or until the time when some may begin, where no other thread waits for that.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, begins: Option<f64>) -> MutexGuard<'a, State> {
        let sound = "no code panics while it holds the queue";
        let begins = begins.filter(|at| state.watched.is_none_or(|watched| *at < watched));
        self.idle.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = match begins {
            Some(at) => {
                state.watched = begins;
                let longest = Duration::from_secs_f64((at - self.now()).clamp(SHORTEST_WAIT, 1.0));
                self.ready.wait_timeout(state, longest).expect(sound).0
            }
            None => self.ready.wait(state).expect(sound),
        };
        self.idle.waiting.fetch_sub(1, Ordering::Relaxed);
        // Another may wait for an earlier time meanwhile.
        if begins.is_some() && state.watched == begins {
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
            let (served, work) = match next {
                NextWork::Work(served, work) => (served, work),
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
            // Whoever was woken for this may have been the one that waited for a time.
            self.wake(state);
            let begun = Instant::now();
            work();
            let seconds = begun.elapsed().as_secs_f64();
            state = self.lock();
            state.busy -= 1;
            state.queue.done(served, seconds);
        }
    }
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

    /// Far beyond what anything here takes: a hang fails the test.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn pool(threads: u32) -> Pool {
        Pool::new(threads, &DecodeMemory::new(0)).expect("threads start")
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_pool_lives_on() {
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
    async fn a_job_with_a_limit_ends_all_its_work_and_leaves_threads_idle() {
        let pool = pool(2);
        pool.set_shares(0, BTreeMap::new(), [(JobId(1), 0.5)].into());
        let begun = Instant::now();
        let work = (0..20).map(|_| pool.run(JobId(1), 0, || burn(Duration::from_millis(5))));
        let mut took = futures::future::try_join_all(work).await.expect("nothing panics");
        // What the last one takes is held against those behind it.
        took.pop();
        let burnt: Duration = took.into_iter().sum();
        let most = begun.elapsed().mul_f64(0.5) + Duration::from_millis(120);
        assert!(burnt <= most, "{burnt:?} in {:?}", begun.elapsed());
    }

    #[test]
    fn threads_are_woken_for_work_that_may_begin_and_once_for_a_time_to_wait_for() {
        let mut state = State { queue: WorkQueue::new(4), busy: 0, in_use: 4, watched: None, closed: false };
        assert!(!state.calls(0.0), "there is no work");
        state.queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), 1.0), (JobId(2), 1.0)].into());
        let work = || Box::new(|| ()) as Work;
        (0..3).for_each(|_| state.queue.push(JobId(1), 0, work()));
        assert!(state.calls(0.0));
        let NextWork::Work(served, _) = state.queue.pop(0.0) else { panic!("it may begin") };
        assert!(!state.calls(0.0), "as much of the job is under way as may be");
        state.queue.done(served, 0.5);
        let NextWork::At(at) = state.queue.pop(0.0) else { panic!("its limit is used") };
        assert!(state.calls(0.0), "nobody waits for the time");
        state.watched = Some(at);
        assert!(!state.calls(0.0), "one does, and another would have nothing to do");
        assert!(state.calls(at), "it has come");
        state.watched = Some(at + 1.0);
        assert!(state.calls(0.0), "one waits for a later time");
        state.watched = Some(at);
        state.queue.push(JobId(2), 0, work());
        assert!(state.calls(0.0), "other work may begin");
    }

    /// A thread that waits for the time of limited work takes other work that never ends: another must wait in its place.
    #[test]
    fn limited_work_begins_in_time_whoever_waited_for_it() {
        for _ in 0..3 {
            let pool = pool(2);
            pool.set_shares(0, BTreeMap::new(), [(JobId(1), 0.1)].into());
            let (ended, ends) = sync_channel(2);
            let push_limited = || {
                let ended = ended.clone();
                let work = move || {
                    burn(Duration::from_millis(30));
                    // Nobody waits where the test has failed.
                    let _ = ended.send(());
                };
                pool.shared.push(JobId(1), 0, Box::new(work));
            };
            // The next piece has to wait for a fifth of a second at least.
            push_limited();
            ends.recv_timeout(PATIENCE).expect("nothing is used yet");
            until(&pool, |state| state.busy == 0);
            // One thread waits for the time, and after that one without.
            let release_first = push_held(&pool);
            until(&pool, |state| state.busy == 1);
            push_limited();
            // On a slow machine the time has come already, and what follows shows nothing.
            until(&pool, |state| state.watched.is_some() || state.queue.begins(0.0).is_none());
            drop(release_first);
            until(&pool, |_| pool.shared.idle.waiting.load(Ordering::Relaxed) == 2);
            // Whoever has waited longest takes this.
            let release_other = push_held(&pool);
            ends.recv_timeout(PATIENCE).expect("limited work begins");
            drop(release_other);
        }
    }

    /// Work of a job without a limit that lasts until what this gives is dropped.
    fn push_held(pool: &Pool) -> SyncSender<()> {
        let (hold, held) = sync_channel(1);
        let work = move || {
            let _ = held.recv();
        };
        pool.shared.push(JobId(2), 0, Box::new(work));
        hold
    }

    /// Waits until a pool is so.
    fn until(pool: &Pool, is_so: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        loop {
            let state = pool.shared.lock();
            if is_so(&state) {
                return;
            }
            drop(state);
            assert!(begun.elapsed() < PATIENCE, "it does not come to be so");
            std::thread::yield_now();
        }
    }

    /// Computes for a while; for how long it really was.
    fn burn(time: Duration) -> Duration {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
        begun.elapsed()
    }

    #[tokio::test]
    async fn fewer_threads_are_used_at_once_and_more_again() {
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
