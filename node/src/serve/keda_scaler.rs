//! A scaler that leaves the change to KEDA, which reads the decision of the leader.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use feedline_coordinator::{PoolChange, PoolLimits, Scaler};
use tokio::time::Instant;

/// Time for which the number of live workers must not have grown before a new leader knows the size of a pool. All live
/// workers report within a few seconds, and pods that started together become live shortly after each other.
const QUIET_TIME: Duration = Duration::from_secs(10);
/// Time after which requested pods that are not live no longer count, unless the leader requests them again. It includes
/// the start of a node that a cluster autoscaler adds.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Time without a plan after which another coordinator has led. The leader plans every second.
const MAX_PLAN_INTERVAL: Duration = Duration::from_secs(3);

/// A scaler whose pools KEDA scales. Pods that this leader requested count as workers before they are live. A new leader
/// cannot see starting pods, so the number of workers is unknown until it has stopped growing. Otherwise, KEDA would remove
/// the workers that have not reported yet.
#[derive(Debug)]
pub(super) struct KedaScaler {
    pools: Vec<PoolLimits>,
    leadership: Mutex<Leadership>,
}

/// The time in which this coordinator has led without an interruption.
#[derive(Debug, Default)]
struct Leadership {
    /// Time of the last plan; `None` before the first plan.
    last_plan: Option<Instant>,
    pools: BTreeMap<String, PoolInTerm>,
}

/// The workers of a pool since the leadership began.
#[derive(Debug)]
struct PoolInTerm {
    /// The largest number of live workers, and the time at which it was first seen.
    most_live: (u32, Instant),
    /// Whether the number of live workers has stopped growing once.
    is_settled: bool,
    request: Option<Request>,
}

/// The last requested number of workers.
#[derive(Debug, Clone, Copy)]
struct Request {
    workers: u32,
    /// Time at which the request was made or all its workers were live, whichever is later.
    complete_at: Instant,
}

impl KedaScaler {
    pub(super) fn new(pools: Vec<PoolLimits>) -> Self {
        Self { pools, leadership: Mutex::default() }
    }

    fn leadership(&self) -> MutexGuard<'_, Leadership> {
        self.leadership.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leadership {
    /// Records a plan, and returns the pool. The first plan of a term forgets the earlier term.
    fn on_plan(&mut self, pool: &str, now: Instant) -> &mut PoolInTerm {
        if self.last_plan.is_some_and(|last_plan| now - last_plan > MAX_PLAN_INTERVAL) {
            self.pools.clear();
        }
        self.last_plan = Some(now);
        self.pools.entry(pool.to_owned()).or_insert_with(|| PoolInTerm {
            most_live: (0, now),
            is_settled: false,
            request: None,
        })
    }
}

impl PoolInTerm {
    /// Returns the number of live and starting workers, if it is known. A pool without live workers has an unknown size,
    /// because its pods have not started.
    fn present(&mut self, live: u32, now: Instant) -> Option<u32> {
        if live > self.most_live.0 {
            self.most_live = (live, now);
        }
        self.is_settled |= self.most_live.0 > 0 && now - self.most_live.1 >= QUIET_TIME;
        let requested = self.requested(live, now);
        Some(live.max(requested)).filter(|_| self.is_settled && live > 0)
    }

    /// Returns the last requested number of workers, or 0 after some of them have not been live for a long time.
    fn requested(&mut self, live: u32, now: Instant) -> u32 {
        let Some(request) = &mut self.request else { return 0 };
        if live >= request.workers {
            request.complete_at = now;
        } else if now - request.complete_at >= START_TIMEOUT {
            self.request = None;
            return 0;
        }
        request.workers
    }
}

#[async_trait]
impl Scaler for KedaScaler {
    fn pools(&self) -> Vec<PoolLimits> {
        self.pools.clone()
    }

    fn present(&self, pool: &str, live: u32) -> Option<u32> {
        let now = Instant::now();
        self.leadership().on_plan(pool, now).present(live, now)
    }

    async fn scale(&self, change: &PoolChange) -> Result<(), String> {
        if let Some(pool) = self.leadership().pools.get_mut(&change.pool) {
            pool.request = Some(Request { workers: change.wanted, complete_at: Instant::now() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn advance(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    /// Plans every second with this number of live workers. Returns the number of workers at the last plan.
    async fn plan(scaler: &KedaScaler, live: u32, plans: u64) -> Option<u32> {
        let mut present = None;
        for _ in 0..plans {
            advance(1).await;
            present = scaler.present("spot", live);
        }
        present
    }

    async fn request(scaler: &KedaScaler, wanted: u32) {
        let change = PoolChange { pool: "spot".to_owned(), wanted, victims: Vec::new() };
        assert_eq!(scaler.scale(&change).await, Ok(()));
    }

    /// A scaler that knows that two workers are live.
    async fn settled() -> KedaScaler {
        let scaler = KedaScaler::new(Vec::new());
        assert_eq!(plan(&scaler, 2, 11).await, Some(2));
        scaler
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_waits_until_the_number_of_live_workers_has_stopped_growing() {
        let scaler = KedaScaler::new(Vec::new());
        assert_eq!(plan(&scaler, 0, 60).await, None, "no pod has started");
        assert_eq!(plan(&scaler, 1, 10).await, None, "other pods may start too");
        assert_eq!(plan(&scaler, 3, 10).await, None, "pods have started a short time ago");
        assert_eq!(plan(&scaler, 3, 1).await, Some(3));
        assert_eq!(plan(&scaler, 4, 1).await, Some(4), "only the first decision waits");
        assert_eq!(plan(&scaler, 0, 1).await, None);
        assert_eq!(plan(&scaler, 2, 1).await, Some(2));
        // Another coordinator leads for some time.
        advance(3).await;
        assert_eq!(plan(&scaler, 2, 10).await, None);
        assert_eq!(plan(&scaler, 2, 1).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn requested_pods_count_as_workers_before_they_are_live() {
        let scaler = settled().await;
        request(&scaler, 7).await;
        assert_eq!(plan(&scaler, 2, 20).await, Some(7));
        assert_eq!(plan(&scaler, 4, 20).await, Some(7));
        request(&scaler, 5).await;
        assert_eq!(plan(&scaler, 4, 1).await, Some(5), "a lower request replaces the request at once");
        request(&scaler, 3).await;
        assert_eq!(plan(&scaler, 4, 1).await, Some(4), "a worker has not stopped yet");
    }

    #[tokio::test(start_paused = true)]
    async fn requested_pods_that_do_not_start_count_for_five_minutes() {
        let scaler = settled().await;
        request(&scaler, 7).await;
        assert_eq!(plan(&scaler, 2, 299).await, Some(7));
        assert_eq!(plan(&scaler, 2, 1).await, Some(2));
        request(&scaler, 7).await;
        assert_eq!(plan(&scaler, 7, 400).await, Some(7));
        assert_eq!(plan(&scaler, 6, 299).await, Some(7), "Kubernetes replaces a pod");
        assert_eq!(plan(&scaler, 6, 1).await, Some(6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_term_forgets_the_request() {
        let scaler = settled().await;
        request(&scaler, 7).await;
        assert_eq!(plan(&scaler, 2, 1).await, Some(7));
        advance(3).await;
        assert_eq!(plan(&scaler, 2, 11).await, Some(2));
    }
}
