//! CPU time of a thread and of a future, and the counters of operators.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use feedline_core::cluster::messages::OperatorStats;
use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What one operator has done so far. Counters only grow.
#[derive(Debug)]
pub(crate) struct Counters {
    name: String,
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    cpu_ns: AtomicU64,
    wait_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn new(name: &str) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            name: name.to_owned(),
            rows_in: zero(),
            rows_out: zero(),
            bytes_out: zero(),
            cpu_ns: zero(),
            wait_ns: zero(),
        }
    }

    pub(crate) fn add_rows(&self, rows_in: usize, rows_out: usize, bytes_out: usize) {
        self.rows_in.fetch_add(rows_in as u64, Ordering::Relaxed);
        self.rows_out.fetch_add(rows_out as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_cpu(&self, cpu: Duration) {
        self.cpu_ns.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_wait(&self, wait: Duration) {
        self.wait_ns.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> OperatorStats {
        OperatorStats {
            name: self.name.clone(),
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            cpu_ns: self.cpu_ns.load(Ordering::Relaxed),
            wait_ns: self.wait_ns.load(Ordering::Relaxed),
        }
    }
}

/// A future that also tells the CPU time of its polls: waiting is not counted.
pub(crate) struct CpuTimed<F> {
    future: Pin<Box<F>>,
    cpu: Duration,
}

impl<F: Future> CpuTimed<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), cpu: Duration::ZERO }
    }
}

impl<F: Future> Future for CpuTimed<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let start = thread_cpu();
        let result = self.future.as_mut().poll(context);
        self.cpu += thread_cpu().saturating_sub(start);
        result.map(|output| (output, self.cpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_is_not_counted_as_work() {
        let ((), cpu) = CpuTimed::new(tokio::time::sleep(Duration::from_millis(30))).await;
        assert!(cpu < Duration::from_millis(20), "{cpu:?}");
    }
}
