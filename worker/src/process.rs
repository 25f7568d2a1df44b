//! Attributes the CPU time of this process to operators and to transport. Transport is all CPU time that does not
//! belong to an operator, such as networking and control.
//!
//! Threads are identified by name. The threads of the CPU pool measure their own work. Futures on other threads charge their work
//! to an operator directly. Stores and caches make blocking calls without measuring them, so the CPU time of blocking threads is
//! divided among the operators in proportion to the bytes that they read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use feedline_data::messages::ProcessCpu;
use rustix::time::{ClockId, clock_gettime};

/// Name prefix of the threads of the CPU pool.
pub(crate) const POOL_THREAD_PREFIX: &str = "feedline-cpu";
/// Name prefix of the threads for blocking calls. The owner of the runtime must set these names.
pub const BLOCKING_THREAD_PREFIX: &str = "feedline-block";
/// Minimum interval between two samples, because a sample takes several microseconds per thread.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// CPU time after which a thread is assumed to have set its name. A new thread has the name of the process until it
/// first runs.
const MIN_NAMED_NS: u64 = 1_000_000;

/// Measures the CPU time of this process. All workers of a process share one clock.
#[derive(Debug, Default)]
pub struct ProcessClock {
    /// CPU time of operators on I/O threads.
    charged_ns: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_sample: Option<Instant>,
    cpu: ProcessCpu,
    threads: BTreeMap<u32, ThreadUsage>,
    /// CPU time of ended threads outside the CPU pool, including `ended_blocking_ns`.
    ended_ns: u64,
    /// CPU time of ended threads that made blocking calls.
    ended_blocking_ns: u64,
    meters: Vec<Weak<ReadMeter>>,
    /// CPU time of all blocking calls at the last sample.
    blocking_ns: u64,
    /// The part of `blocking_ns` that was added to meters.
    distributed_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadKind {
    Pool,
    Blocking,
    Other,
}

#[derive(Debug)]
struct ThreadUsage {
    kind: ThreadKind,
    cpu_ns: u64,
}

/// Measures the blocking reads of one operator.
#[derive(Debug, Default)]
pub(crate) struct ReadMeter {
    bytes: AtomicU64,
    sampled_bytes: AtomicU64,
    cpu_ns: AtomicU64,
}

impl ReadMeter {
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }
}

impl ProcessClock {
    /// Creates a clock for all workers of this process.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a meter. Each sample adds a share of the CPU time of blocking calls to the meter.
    pub(crate) fn meter(&self) -> Arc<ReadMeter> {
        let meter = Arc::new(ReadMeter::default());
        self.lock().meters.push(Arc::downgrade(&meter));
        meter
    }

    /// Adds CPU time that an I/O thread has spent on an operator.
    pub(crate) fn charge(&self, cpu: Duration) {
        self.charged_ns.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the CPU time of the process. The sample is at most [`SAMPLE_INTERVAL`] old. `transport_ns` is 0 if the system does not
    /// report the CPU time of threads.
    pub(crate) fn sample(&self) -> ProcessCpu {
        let mut state = self.lock();
        let now = Instant::now();
        if state.last_sample.is_none_or(|last_sample| now - last_sample >= SAMPLE_INTERVAL) {
            state.last_sample = Some(now);
            state.read_threads(Path::new("/proc/self/task"));
            state.distribute();
            let threads = state.total_ns(|kind| kind != ThreadKind::Pool) + state.ended_ns;
            let operators = self.charged_ns.load(Ordering::Relaxed) + state.distributed_ns;
            let time = clock_gettime(ClockId::ProcessCPUTime);
            let process = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
            let transport_ns = threads.saturating_sub(operators).max(state.cpu.transport_ns);
            state.cpu = ProcessCpu { process_ns: process.as_nanos() as u64, transport_ns };
        }
        state.cpu
    }
}

impl State {
    fn total_ns(&self, is_counted: impl Fn(ThreadKind) -> bool) -> u64 {
        self.threads.values().filter(|thread| is_counted(thread.kind)).map(|thread| thread.cpu_ns).sum()
    }

    /// Reads the CPU time of every thread.
    fn read_threads(&mut self, folder: &Path) {
        let mut before = std::mem::take(&mut self.threads);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            // Skip threads that end during the sample.
            let (Some(id), Some(cpu_ns)) = (id, read_cpu_ns(&entry.path())) else { continue };
            let known = match before.remove(&id) {
                // The thread has ended, and a new thread has its id.
                Some(other) if other.cpu_ns > cpu_ns => {
                    self.add_ended(&other);
                    None
                }
                known => known,
            };
            let thread = match known {
                Some(known) if known.cpu_ns >= MIN_NAMED_NS => ThreadUsage { cpu_ns, ..known },
                _ => ThreadUsage { kind: read_kind(&entry.path()), cpu_ns },
            };
            self.threads.insert(id, thread);
        }
        before.values().for_each(|ended| self.add_ended(ended));
    }

    /// Adds the CPU time of a thread that has ended.
    fn add_ended(&mut self, ended: &ThreadUsage) {
        self.ended_ns += if ended.kind == ThreadKind::Pool { 0 } else { ended.cpu_ns };
        self.ended_blocking_ns += if ended.kind == ThreadKind::Blocking { ended.cpu_ns } else { 0 };
    }

    /// Divides the CPU time of blocking calls since the last sample among the meters, in proportion to the bytes that they read.
    fn distribute(&mut self) {
        let blocking = self.total_ns(|kind| kind == ThreadKind::Blocking) + self.ended_blocking_ns;
        let elapsed_ns = blocking.saturating_sub(self.blocking_ns);
        self.blocking_ns = self.blocking_ns.max(blocking);
        self.meters.retain(|meter| meter.strong_count() > 0);
        let meters: Vec<Arc<ReadMeter>> = self.meters.iter().filter_map(Weak::upgrade).collect();
        let read = |meter: &ReadMeter| {
            let bytes = meter.bytes.load(Ordering::Relaxed);
            bytes - meter.sampled_bytes.swap(bytes, Ordering::Relaxed)
        };
        let read: Vec<u64> = meters.iter().map(|meter| read(meter)).collect();
        let all: u64 = read.iter().sum();
        for (meter, bytes) in meters.iter().zip(read) {
            let share = (u128::from(elapsed_ns) * u128::from(bytes) / u128::from(all.max(1))) as u64;
            meter.cpu_ns.fetch_add(share, Ordering::Relaxed);
            self.distributed_ns += share;
        }
    }
}

/// Reads the CPU time of a thread in nanoseconds, which is the first number in `schedstat`.
fn read_cpu_ns(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

/// CPU time of the current thread in user mode and in the kernel, in clock ticks. `None` if the system does not report it.
pub(crate) fn thread_ticks() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
    parse_ticks(&stat)
}

/// Parses the ticks of a `stat` file. A thread name may contain any character, so fields are counted from the last `)`.
fn parse_ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user = fields.nth(11)?.parse().ok()?;
    Some((user, fields.next()?.parse().ok()?))
}

fn read_kind(thread: &Path) -> ThreadKind {
    let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
    if name.starts_with(POOL_THREAD_PREFIX) {
        ThreadKind::Pool
    } else if name.starts_with(BLOCKING_THREAD_PREFIX) {
        ThreadKind::Blocking
    } else {
        ThreadKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(folder: &Path, id: u32, name: &str, cpu_ns: u64) {
        let path = folder.join(id.to_string());
        fs::create_dir_all(&path).expect("the scratch directory is writable");
        fs::write(path.join("comm"), format!("{name}\n")).expect("the scratch directory is writable");
        fs::write(path.join("schedstat"), format!("{cpu_ns} 0 1\n"))
            .expect("the scratch directory is writable");
    }

    #[test]
    fn time_of_blocking_calls_is_divided_by_bytes_and_ended_threads_count() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = ProcessClock::new();
        let (one, two) = (clock.meter(), clock.meter());
        let mut state = clock.lock();
        let mut sample = |one_bytes: u64, two_bytes: u64| {
            one.add(one_bytes);
            two.add(two_bytes);
            state.read_threads(folder.path());
            state.distribute();
            let others = state.total_ns(|kind| kind != ThreadKind::Pool) + state.ended_ns;
            (one.cpu_ns(), two.cpu_ns(), others)
        };
        thread(folder.path(), 1, "feedline-io", 100);
        thread(folder.path(), 2, "feedline-cpu-0", 5000);
        thread(folder.path(), 3, "feedline-block", 40);
        assert_eq!(sample(30, 10), (30, 10, 140));
        thread(folder.path(), 3, "feedline-block", 60);
        assert_eq!(sample(0, 0), (30, 10, 160), "no meter has read any bytes");
        // The thread has ended, and another thread has its ID.
        thread(folder.path(), 3, "feedline-block", 8);
        assert_eq!(sample(0, 1), (30, 18, 168));
        fs::remove_dir_all(folder.path().join("3")).expect("the thread has a directory");
        assert_eq!(sample(5, 5), (30, 18, 168));
    }

    #[test]
    fn a_thread_that_sets_its_name_late_is_identified_by_it() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let mut state = State::default();
        let mut others = |name: &str, cpu_ns: u64| {
            thread(folder.path(), 1, name, cpu_ns);
            state.read_threads(folder.path());
            state.total_ns(|kind| kind != ThreadKind::Pool) + state.ended_ns
        };
        let unnamed: Vec<u64> = (0..5).map(|_| others("feedline", 1_000)).collect();
        assert_eq!(unnamed, [1_000; 5]);
        assert_eq!(others("feedline-cpu-0", 5_000_000_000), 0);
    }

    #[test]
    fn ticks_are_parsed_after_any_thread_name() {
        let stat = "1 (a) b (c)) R 1 1 1 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 1 1 1";
        assert_eq!(parse_ticks(stat), Some((17, 5)));
        assert_eq!(parse_ticks("1 (a) R 1 1"), None);
        assert!(!cfg!(target_os = "linux") || thread_ticks().is_some());
    }

    #[test]
    fn samples_never_decrease() {
        let clock = ProcessClock::new();
        let first = clock.sample();
        clock.lock().last_sample = None;
        clock.charge(Duration::from_secs(3600));
        let second = clock.sample();
        assert!(second.process_ns >= first.process_ns && second.transport_ns >= first.transport_ns);
    }
}
