//! Whether the API server answers, for all pools together: logs one warning when it stops, and one line when it answers
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The failing requests of all pools.
#[derive(Debug, Default)]
pub(super) struct ApiHealth(Mutex<FailingPools>);

#[derive(Debug, Default)]
struct FailingPools {
    /// Pools whose last request was not answered.
    unanswered: BTreeSet<String>,
    /// The last message of each pool whose requests are rejected.
    rejected: BTreeMap<String, String>,
}

impl ApiHealth {
    /// Records a request without an answer. Logs a warning if all earlier requests were answered.
    pub(super) fn on_unanswered(&self, pool: &str, sentence: &str) {
        let mut failing = self.lock();
        let is_first = failing.unanswered.is_empty();
        failing.unanswered.insert(pool.to_owned());
        if is_first {
            tracing::warn!("{sentence}; the workers stay, and their number does not change until it answers");
        } else {
            tracing::debug!("{sentence}");
        }
    }

    /// Records an answer. Logs a line if it is the first answer after all pools were without an answer.
    pub(super) fn on_answer(&self, pool: &str) {
        let mut failing = self.lock();
        if failing.unanswered.remove(pool) && failing.unanswered.is_empty() {
            tracing::info!("the API server of Kubernetes answers again");
        }
    }

    /// Records a rejected request. Logs each message once.
    pub(super) fn on_rejected(&self, pool: &str, sentence: String) {
        let mut failing = self.lock();
        if failing.rejected.get(pool) != Some(&sentence) {
            tracing::warn!("{sentence}");
            failing.rejected.insert(pool.to_owned(), sentence);
        }
    }

    /// Records that the requests of a pool are no longer rejected.
    pub(super) fn on_accepted(&self, pool: &str) {
        if self.lock().rejected.remove(pool).is_some() {
            tracing::info!(pool, "the API server of Kubernetes accepts the requests again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, FailingPools> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl ApiHealth {
    /// Returns the pools without an answer, and the pools with a rejected request.
    pub(super) fn failing(&self) -> (Vec<String>, Vec<String>) {
        let failing = self.lock();
        (failing.unanswered.iter().cloned().collect(), failing.rejected.keys().cloned().collect())
    }
}
