//! Wakes up the planner when a store rejects requests of a worker, because the next plan would come too late.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use feedline_data::ids::WorkerId;
use feedline_data::messages::WorkerReport;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Minimum time between two plans.
const MIN_PLAN_INTERVAL: Duration = Duration::from_millis(250);
/// Time for the reports of other workers whose requests were rejected at the same time.
const COLLECT: Duration = Duration::from_millis(50);
/// Maximum number of workers whose rejections are counted. The next report of a forgotten worker wakes up the planner.
const MAX_WORKERS: usize = 100_000;

/// The rejections that workers have reported.
#[derive(Debug, Default)]
pub(crate) struct ThrottleSignal {
    rejected: Mutex<BTreeMap<WorkerId, u64>>,
    increased: Notify,
}

impl ThrottleSignal {
    /// Takes a report of a worker.
    pub(crate) fn observe(&self, report: &WorkerReport) {
        let rejected = report.stores.iter().fold(0, |sum: u64, store| sum.saturating_add(store.rejected));
        if rejected == 0 {
            return;
        }
        let mut counts = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_WORKERS {
            counts.clear();
        }
        let before = counts.insert(report.worker, rejected);
        if before.is_none_or(|before| before < rejected) {
            self.increased.notify_one();
        }
    }

    /// Waits until a store has rejected requests, and until the next plan is due after `last_plan`.
    pub(crate) async fn wait(&self, last_plan: Instant) {
        self.increased.notified().await;
        sleep_until((Instant::now() + COLLECT).max(last_plan + MIN_PLAN_INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::messages::StoreReport;
    use futures::FutureExt;

    use super::*;
    use crate::tenant_view::tests::working;

    #[tokio::test(start_paused = true)]
    async fn only_new_rejections_wake_up_the_planner() {
        let signal = ThrottleSignal::default();
        let report = |rejected| {
            let store = StoreReport { rejected, ..StoreReport::default() };
            WorkerReport { stores: vec![store], ..working() }
        };
        signal.observe(&report(0));
        assert!(signal.wait(Instant::now()).now_or_never().is_none());
        signal.observe(&report(2));
        let start = Instant::now();
        signal.wait(start).await;
        assert_eq!(start.elapsed(), MIN_PLAN_INTERVAL);
        signal.observe(&report(2));
        assert!(signal.wait(Instant::now()).now_or_never().is_none(), "it was observed before");
        signal.observe(&report(3));
        let start = Instant::now();
        signal.wait(start - MIN_PLAN_INTERVAL).await;
        assert_eq!(start.elapsed(), COLLECT);
    }
}
