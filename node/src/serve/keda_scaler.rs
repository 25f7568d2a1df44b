//! A scaler that leaves the change to KEDA, which reads the decision of the leader.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use feedline_coordinator::{PoolChange, PoolLimits, Scaler};
use tokio::time::Instant;

/// Time after which all live workers have reported to a new leader.
const FIRST_REPORTS: Duration = Duration::from_secs(5);
/// Time without a plan after which another coordinator has led. The leader plans every second.
const MAX_PLAN_INTERVAL: Duration = Duration::from_secs(3);

/// A scaler whose pools KEDA scales. The number of workers is unknown until all workers could report to a new
/// leader. Otherwise, KEDA would remove the workers that have not reported yet.
#[derive(Debug)]
pub(super) struct KedaScaler {
    pools: Vec<PoolLimits>,
    leadership: Mutex<Option<Leadership>>,
}

/// The time in which this coordinator has led without an interruption.
#[derive(Debug, Clone, Copy)]
struct Leadership {
    began: Instant,
    last_plan: Instant,
}

impl KedaScaler {
    pub(super) fn new(pools: Vec<PoolLimits>) -> Self {
        Self { pools, leadership: Mutex::default() }
    }

    /// Records a plan. Returns whether all workers could report since the leadership began.
    fn on_plan(&self, now: Instant) -> bool {
        let mut leadership = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        let current = leadership.filter(|leadership| now - leadership.last_plan <= MAX_PLAN_INTERVAL);
        let began = current.map_or(now, |leadership| leadership.began);
        *leadership = Some(Leadership { began, last_plan: now });
        now - began >= FIRST_REPORTS
    }
}

#[async_trait]
impl Scaler for KedaScaler {
    fn pools(&self) -> Vec<PoolLimits> {
        self.pools.clone()
    }

    /// A pool without live workers has an unknown size, because its pods have not started.
    fn present(&self, _pool: &str, live: u32) -> Option<u32> {
        let have_reported = self.on_plan(Instant::now());
        Some(live).filter(|live| have_reported && *live > 0)
    }

    async fn scale(&self, _change: &PoolChange) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans every second, and returns the number of plans until the number of workers is known.
    async fn plans_until_known(scaler: &KedaScaler) -> u32 {
        for plan in 0..60 {
            if scaler.present("spot", 7) == Some(7) {
                return plan;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        panic!("the number of workers stays unknown");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_workers_is_known_after_their_first_reports_to_a_leader() {
        let scaler = KedaScaler::new(Vec::new());
        assert_eq!(plans_until_known(&scaler).await, 5);
        assert_eq!(plans_until_known(&scaler).await, 0);
        assert_eq!(scaler.present("spot", 0), None, "no pod has started");
        // Another coordinator leads for some time.
        tokio::time::advance(MAX_PLAN_INTERVAL + Duration::from_millis(1)).await;
        assert_eq!(plans_until_known(&scaler).await, 5);
    }
}
