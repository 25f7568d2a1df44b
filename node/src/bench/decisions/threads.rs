//! The threads that workers and consumers share. They yield to the coordinators, from whom they would take no core if they
//! ran elsewhere, and what they use is told apart.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::Credentials;
use feedline_proto::CoordinatorService;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::failure::Failure;
use crate::{cluster, environment};

/// Name of these threads: no longer than the system keeps.
const NAME: &str = "feedline-load";
/// By how much they yield: at 10 a thread gets a tenth of what another one gets beside it.
const NICE: i32 = 10;

/// A runtime of its own for the load.
pub(super) struct LoadThreads {
    /// Always there, until it is dropped.
    runtime: Option<Runtime>,
}

impl LoadThreads {
    pub(super) fn start() -> Result<Self, Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(environment::cores().max(2) as usize)
            .thread_name(NAME)
            // Where that is not permitted they take their part as all others do.
            .on_thread_start(|| {
                let _ = rustix::process::nice(NICE);
            })
            .enable_all()
            .build()
            .map_err(|error| Failure::failed(format!("cannot start threads: {error}; free some")))?;
        Ok(Self { runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("it is there until it is dropped").handle()
    }

    /// A connection whose work is done on these threads.
    pub(super) async fn connect(&self, urls: &[String]) -> Result<Arc<dyn CoordinatorService>, Failure> {
        let urls = urls.to_vec();
        let connected = async move { cluster::connect(&urls, &Credentials::default()).await };
        self.handle().spawn(connected).await.map_err(Failure::failed)?
    }
}

impl Drop for LoadThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// CPU time that these threads have used.
pub(super) fn load_cpu_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| cpu_time_of(&thread.path())).sum()
}

/// CPU time of a thread, if it is one of these.
fn cpu_time_of(thread: &Path) -> Option<Duration> {
    let name = fs::read_to_string(thread.join("comm")).ok()?;
    let used = fs::read_to_string(thread.join("schedstat")).ok()?;
    let ns = used.split_whitespace().next()?.parse().ok()?;
    (name.trim_end() == NAME).then(|| Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn what_the_load_uses_is_told_apart() {
        let threads = LoadThreads::start().expect("threads can be started");
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
        let beside = load_cpu_time() - before;
        threads.handle().spawn(async move { spin(Duration::from_millis(40)) }).await.expect("no panic");
        let used = load_cpu_time() - before;
        assert!(beside < Duration::from_millis(20), "{beside:?} of a thread that is no load");
        assert!(used >= Duration::from_millis(30), "{used:?}");
    }
}
