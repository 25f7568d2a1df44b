//! The threads that generate the load of a benchmark. They run at a lower priority than the measured roles, and their
//! CPU time is measured separately.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::Credentials;
use feedline_command::Failure;
use feedline_proto::CoordinatorService;
use feedline_proto::grpc;
use tokio::runtime::{Builder, Handle, Runtime};

/// Name of the load threads. The system truncates longer names.
const THREAD_NAME: &str = "feedline-load";
/// Nice value of the load threads. At 10, a thread receives a tenth of the CPU time of a thread at 0.
const NICE: i32 = 10;

/// A separate runtime for the load.
pub(super) struct LoadThreads {
    /// `Some` until this value is dropped.
    runtime: Option<Runtime>,
}

impl LoadThreads {
    pub(super) fn start(cores: u32) -> Result<Self, Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores.max(2) as usize)
            .thread_name(THREAD_NAME)
            // If the system does not permit a lower priority, the threads keep the normal priority.
            .on_thread_start(|| {
                let _ = rustix::process::nice(NICE);
            })
            .enable_all()
            .build()
            .map_err(|error| {
                Failure::failed(format!("cannot start threads: {error}; stop other processes"))
            })?;
        Ok(Self { runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("the runtime exists until it is dropped").handle()
    }

    /// Connects to coordinators. The connection's tasks run on these threads.
    pub(super) async fn connect(&self, urls: &[String]) -> Result<Arc<dyn CoordinatorService>, Failure> {
        let urls = urls.to_vec();
        let connect = async move { grpc::connect_coordinators(&urls, &Credentials::default()) };
        Ok(self.handle().spawn(connect).await.map_err(Failure::failed)??)
    }
}

impl Drop for LoadThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the CPU time that the load threads have used.
pub(super) fn load_cpu_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| cpu_time_of(&thread.path())).sum()
}

/// Returns the CPU time of a thread, or `None` if the thread does not belong to the load.
fn cpu_time_of(thread: &Path) -> Option<Duration> {
    let name = fs::read_to_string(thread.join("comm")).ok()?;
    let used = fs::read_to_string(thread.join("schedstat")).ok()?;
    let ns = used.split_whitespace().next()?.parse().ok()?;
    (name.trim_end() == THREAD_NAME).then(|| Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn the_cpu_time_of_the_load_excludes_other_threads() {
        let threads = LoadThreads::start(2).expect("threads can be started");
        let spin = |time: Duration| {
            let started = Instant::now();
            let mut used = Duration::ZERO;
            while used < time && started.elapsed() < Duration::from_secs(60) {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                used = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
            }
        };
        let before = load_cpu_time();
        spin(Duration::from_millis(20));
        let other = load_cpu_time() - before;
        threads.handle().spawn(async move { spin(Duration::from_millis(40)) }).await.expect("no panic");
        let used = load_cpu_time() - before;
        assert!(other < Duration::from_millis(20), "{other:?} of a thread outside the load");
        assert!(used >= Duration::from_millis(30), "{used:?}");
    }
}
