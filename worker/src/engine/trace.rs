//! Operator counters: rows, bytes, CPU time and wait time. They stay at 0 on a worker that does not trace operators.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use feedline_data::messages::{OperatorStats, StoreStats};
use feedline_sources::BlockRows;
use rustix::time::{ClockId, clock_gettime};

use crate::process::{ProcessClock, ReadMeter};

/// Returns the CPU time of the current thread.
pub(super) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether operators are traced, and the clock that measures the CPU time of the process.
#[derive(Debug, Clone)]
pub(crate) struct Tracing {
    pub(crate) is_on: bool,
    pub(crate) clock: Arc<ProcessClock>,
}

/// Counters of one operator. All counters except `queue_bytes` only increase.
#[derive(Debug)]
pub(crate) struct OperatorCounters {
    name: String,
    parallelism: Option<u32>,
    is_on: bool,
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    cpu_ns: AtomicU64,
    busy_ns: AtomicU64,
    wait_input_ns: AtomicU64,
    wait_output_ns: AtomicU64,
    latency_ns: AtomicU64,
    queue_bytes: AtomicU64,
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

fn add_time(counter: &AtomicU64, time: Duration) {
    add(counter, time.as_nanos() as u64);
}

impl OperatorCounters {
    /// Creates counters for an operator with this `parallelism` in the pipeline. The counters stay at 0 unless `is_on` is
    /// set.
    pub(crate) fn new(name: &str, parallelism: Option<u32>, is_on: bool) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            name: name.to_owned(),
            parallelism,
            is_on,
            rows_in: zero(),
            rows_out: zero(),
            bytes_in: zero(),
            bytes_out: zero(),
            cpu_ns: zero(),
            busy_ns: zero(),
            wait_input_ns: zero(),
            wait_output_ns: zero(),
            latency_ns: zero(),
            queue_bytes: zero(),
        })
    }

    /// Whether the operator is traced. If not, the counters stay at 0.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn add_rows(&self, rows_in: usize, rows_out: usize) {
        if self.is_on {
            add(&self.rows_in, rows_in as u64);
            add(&self.rows_out, rows_out as u64);
        }
    }

    pub(crate) fn add_bytes(&self, bytes_in: u64, bytes_out: u64) {
        if self.is_on {
            add(&self.bytes_in, bytes_in);
            add(&self.bytes_out, bytes_out);
        }
    }

    /// Adds time spent waiting for a permit, in addition to the waits that [`QueuedRows`] measures.
    pub(crate) fn add_wait_input(&self, wait: Duration) {
        if self.is_on {
            add_time(&self.wait_input_ns, wait);
        }
    }

    /// Adds an execution that waited for I/O or a timer. Elapsed time without CPU time counts as latency.
    pub(crate) fn add_latency(&self, busy: Duration, cpu: Duration) {
        if self.is_on {
            add_time(&self.busy_ns, busy);
            add_time(&self.latency_ns, busy.saturating_sub(cpu));
        }
    }

    /// Adds an execution in another process, with the CPU time of both processes.
    pub(crate) fn add_elsewhere(&self, busy: Duration, process_cpu: Duration, own_cpu: Duration) {
        if self.is_on {
            add_time(&self.cpu_ns, process_cpu + own_cpu);
            add_time(&self.busy_ns, busy);
            add_time(&self.latency_ns, busy.saturating_sub(process_cpu + own_cpu));
        }
    }

    pub(crate) fn snapshot(&self) -> OperatorStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OperatorStats {
            name: self.name.clone(),
            rows_in: read(&self.rows_in),
            rows_out: read(&self.rows_out),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            cpu_ns: read(&self.cpu_ns),
            busy_ns: read(&self.busy_ns),
            wait_input_ns: read(&self.wait_input_ns),
            wait_output_ns: read(&self.wait_output_ns),
            latency_ns: read(&self.latency_ns),
            queue_bytes: read(&self.queue_bytes),
            parallelism: self.parallelism,
        }
    }
}

/// Divides the time of a thread among operators without gaps: each lap starts at the end of the previous lap.
pub(crate) struct LapTimer(Option<(Duration, Instant)>);

impl LapTimer {
    /// Starts the first lap. Measures nothing unless `is_on` is set.
    pub(crate) fn start(is_on: bool) -> Self {
        Self(is_on.then(|| (thread_cpu(), Instant::now())))
    }

    /// Ends a lap, and adds its CPU time and elapsed time to the counters of an operator.
    pub(crate) fn record(&mut self, counters: &OperatorCounters) {
        if let Some((cpu, wall)) = &mut self.0 {
            let (cpu_now, now) = (thread_cpu(), Instant::now());
            add_time(&counters.cpu_ns, cpu_now.saturating_sub(*cpu));
            add_time(&counters.busy_ns, now - *wall);
            (*cpu, *wall) = (cpu_now, now);
        }
    }
}

/// Rows that wait between two operators. The wait ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct QueuedRows {
    since: Instant,
    bytes: u64,
    /// The operator that produced the rows.
    from: Arc<OperatorCounters>,
    /// The operator that will process the rows. `None` if the rows wait for a consumer.
    to: Option<Arc<OperatorCounters>>,
}

impl QueuedRows {
    /// Starts measuring a wait. Returns `None` on a worker that does not trace operators.
    pub(crate) fn begin(
        from: &Arc<OperatorCounters>,
        to: Option<&Arc<OperatorCounters>>,
        bytes: u64,
    ) -> Option<Self> {
        if !from.is_on {
            return None;
        }
        let waiting = Self { since: Instant::now(), bytes, from: Arc::clone(from), to: to.cloned() };
        add(&waiting.queue().queue_bytes, bytes);
        Some(waiting)
    }

    fn queue(&self) -> &OperatorCounters {
        self.to.as_ref().unwrap_or(&self.from)
    }
}

impl Drop for QueuedRows {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        self.queue().queue_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        add_time(&self.from.wait_output_ns, waited);
        if let Some(to) = &self.to {
            add_time(&to.wait_input_ns, waited);
        }
    }
}

/// A future that also returns the CPU time of its polls. Time between polls does not count.
pub(crate) struct CpuTimed<F> {
    future: Pin<Box<F>>,
    is_on: bool,
    cpu: Duration,
}

impl<F: Future> CpuTimed<F> {
    pub(crate) fn new(is_on: bool, future: F) -> Self {
        Self { future: Box::pin(future), is_on, cpu: Duration::ZERO }
    }
}

impl<F: Future> Future for CpuTimed<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_on {
            return self.future.as_mut().poll(context).map(|output| (output, Duration::ZERO));
        }
        let start = thread_cpu();
        let result = self.future.as_mut().poll(context);
        self.cpu += thread_cpu().saturating_sub(start);
        result.map(|output| (output, self.cpu))
    }
}

/// Counters of a job's reads from the store.
#[derive(Debug)]
pub(crate) struct StoreCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    wait_ns: AtomicU64,
    shards: AtomicU64,
    shard_bytes: AtomicU64,
    /// A bit set with one bit for each shard. The bit is set after the first read from the shard.
    seen: Vec<AtomicU64>,
    /// Measures bytes and CPU time of blocking read calls.
    meter: Arc<ReadMeter>,
    is_on: bool,
}

impl StoreCounters {
    /// Creates counters for a dataset with this number of shards.
    pub(crate) fn new(shards: usize, tracing: &Tracing) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            requests: zero(),
            bytes: zero(),
            wait_ns: zero(),
            shards: zero(),
            shard_bytes: zero(),
            seen: (0..shards.div_ceil(64)).map(|_| zero()).collect(),
            meter: tracing.clock.meter(),
            is_on: tracing.is_on,
        }
    }

    /// Adds a read from the shard with index `shard`, whose size is `shard_bytes`.
    pub(crate) fn add(&self, rows: &BlockRows, shard: u32, shard_bytes: u64) {
        if !self.is_on || rows.store_requests == 0 {
            return;
        }
        add(&self.requests, u64::from(rows.store_requests));
        add(&self.bytes, rows.store_bytes);
        add_time(&self.wait_ns, rows.store_wait);
        self.meter.add(rows.blocking_bytes);
        let bit = 1 << (shard % 64);
        let seen = self.seen.get(shard as usize / 64);
        if seen.is_some_and(|seen| seen.fetch_or(bit, Ordering::Relaxed) & bit == 0) {
            add(&self.shards, 1);
            add(&self.shard_bytes, shard_bytes);
        }
    }

    pub(crate) fn snapshot(&self) -> StoreStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            requests: read(&self.requests),
            bytes: read(&self.bytes),
            wait_ns: read(&self.wait_ns),
            distinct_shards: read(&self.shards),
            distinct_shard_bytes: read(&self.shard_bytes),
        }
    }

    /// CPU time of blocking read calls.
    pub(crate) fn blocking_cpu_ns(&self) -> u64 {
        self.meter.cpu_ns()
    }
}

/// A future that runs on an I/O thread on behalf of an operator. The CPU time of its polls is charged to the operator,
/// even if the future is cancelled.
pub(crate) struct CpuCharged<F> {
    future: Pin<Box<F>>,
    counters: Arc<OperatorCounters>,
    clock: Arc<ProcessClock>,
}

impl<F: Future> CpuCharged<F> {
    pub(crate) fn new(future: F, counters: &Arc<OperatorCounters>, clock: &Arc<ProcessClock>) -> Self {
        Self { future: Box::pin(future), counters: Arc::clone(counters), clock: Arc::clone(clock) }
    }
}

impl<F: Future> Future for CpuCharged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.counters.is_on {
            return self.future.as_mut().poll(context);
        }
        let start = thread_cpu();
        let result = self.future.as_mut().poll(context);
        let cpu = thread_cpu().saturating_sub(start);
        add_time(&self.counters.cpu_ns, cpu);
        self.clock.charge(cpu);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_do_not_count_as_cpu_time() {
        let ((), cpu) = CpuTimed::new(true, tokio::time::sleep(Duration::from_millis(30))).await;
        assert!(cpu < Duration::from_millis(20), "{cpu:?}");
    }

    #[test]
    fn laps_have_no_gaps_and_waits_count_for_both_operators() {
        let (first, second) =
            (OperatorCounters::new("a", None, true), OperatorCounters::new("b", Some(2), true));
        let (cpu, wall) = (thread_cpu(), Instant::now());
        let mut lap = LapTimer::start(true);
        let waiting = QueuedRows::begin(&first, Some(&second), 10);
        assert_eq!(second.snapshot().queue_bytes, 10);
        lap.record(&first);
        drop(waiting);
        lap.record(&second);
        let (cpu, wall) = ((thread_cpu() - cpu).as_nanos() as u64, wall.elapsed().as_nanos() as u64);
        let (first, second) = (first.snapshot(), second.snapshot());
        assert!(first.cpu_ns + second.cpu_ns <= cpu && first.busy_ns + second.busy_ns <= wall);
        assert!(first.wait_output_ns > 0 && first.wait_output_ns == second.wait_input_ns);
        assert_eq!((second.queue_bytes, second.parallelism), (0, Some(2)));
    }

    #[test]
    fn counters_that_are_off_stay_at_zero() {
        let counters = OperatorCounters::new("a", None, false);
        counters.add_rows(1, 1);
        counters.add_bytes(1, 1);
        counters.add_latency(Duration::from_secs(1), Duration::ZERO);
        LapTimer::start(false).record(&counters);
        assert!(QueuedRows::begin(&counters, None, 10).is_none());
        let nothing = OperatorStats { name: "a".to_owned(), ..OperatorStats::default() };
        assert_eq!(counters.snapshot(), nothing);
    }

    fn rows(store_requests: u32) -> BlockRows {
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        BlockRows {
            batch: arrow::array::RecordBatch::new_empty(schema),
            failures: Vec::new(),
            absent: Vec::new(),
            lost: Vec::new(),
            newest_ms: None,
            held_bytes: 0,
            store_bytes: 10,
            store_requests,
            store_wait: Duration::from_nanos(7),
            blocking_bytes: 0,
        }
    }

    #[test]
    fn each_shard_counts_once() {
        let tracing = Tracing { is_on: true, clock: ProcessClock::new() };
        let counters = StoreCounters::new(130, &tracing);
        for shard in [0, 64, 129, 64, 0, 500] {
            counters.add(&rows(2), shard, 1000);
        }
        counters.add(&rows(0), 1, 1000);
        let stats = counters.snapshot();
        assert_eq!((stats.requests, stats.bytes, stats.wait_ns), (12, 60, 42));
        assert_eq!((stats.distinct_shards, stats.distinct_shard_bytes), (3, 3000));
        let off = StoreCounters::new(1, &Tracing { is_on: false, ..tracing });
        off.add(&rows(2), 0, 1000);
        assert_eq!(off.snapshot(), StoreStats::default());
    }

    #[test]
    fn executions_elsewhere_divide_into_cpu_time_and_latency() {
        let counters = OperatorCounters::new("map", None, true);
        let ns = Duration::from_nanos;
        counters.add_elsewhere(ns(100), ns(30), ns(5));
        counters.add_latency(ns(50), ns(20));
        counters.add_wait_input(ns(4));
        counters.add_rows(3, 2);
        counters.add_bytes(8, 9);
        let stats = counters.snapshot();
        assert_eq!((stats.cpu_ns, stats.busy_ns, stats.latency_ns, stats.wait_input_ns), (35, 150, 95, 4));
        assert_eq!((stats.rows_in, stats.rows_out, stats.bytes_in, stats.bytes_out), (3, 2, 8, 9));
    }

    #[tokio::test]
    async fn the_polls_of_a_future_are_charged_to_its_operator() {
        let (counters, clock) = (OperatorCounters::new("source", None, true), ProcessClock::new());
        let spin = async {
            let start = thread_cpu();
            while thread_cpu() - start < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            7
        };
        assert_eq!(CpuCharged::new(spin, &counters, &clock).await, 7);
        assert!(counters.snapshot().cpu_ns >= 2_000_000);
        let off = OperatorCounters::new("source", None, false);
        assert_eq!(CpuCharged::new(async { 1 }, &off, &clock).await, 1);
        assert_eq!(off.snapshot().cpu_ns, 0);
    }
}
