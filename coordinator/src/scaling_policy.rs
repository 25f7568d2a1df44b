//! Decides on the number of workers of each pool with `feedline_planner::plan::scale`, and calls the scaler.
//!
//! The calls run beside the planning task, at most one for each pool, so that a slow scaler delays no plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use feedline_common::metric_table::ABSENT;
use feedline_data::ids::Millis;
use feedline_data::messages::samples::WorkerReportSample;
use feedline_data::view::PoolDecision;
use feedline_planner::observe::ResourceNeeds;
use feedline_planner::plan::{PoolProblem, ScaleDecision, ScaleHistory, ScaleSettings};
use metrics::gauge;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::metrics::{LIVE_WORKERS, POOL_WANTED_WORKERS, SCALED_WORKERS};
use crate::scaling::{PoolChange, PoolLimits, Scaler};
use crate::victims;

#[cfg(test)]
mod tests;

/// Maximum duration of one call of the scaler.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between two warnings about failed calls for one pool.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The gauges of a decision for a pool.
const DECISION_GAUGES: [&str; 2] = [SCALED_WORKERS, POOL_WANTED_WORKERS];
/// The gauges of a pool.
const ALL_GAUGES: [&str; 3] = [LIVE_WORKERS, SCALED_WORKERS, POOL_WANTED_WORKERS];

/// A scaler, and the state of each of its pools.
#[derive(Debug)]
pub(crate) struct ScalingPolicy {
    /// Time for which fewer workers must be enough before workers are removed.
    shrink_after_ms: Millis,
    scaler: Arc<dyn Scaler>,
    pools: BTreeMap<String, PoolScaling>,
    /// The last decision for each pool whose size is known, in the scaler's order.
    decisions: Vec<PoolDecision>,
    /// The last decisions with their reasons.
    explanation: String,
}

impl ScalingPolicy {
    pub(crate) fn new(shrink_after_ms: Millis, scaler: Arc<dyn Scaler>) -> Self {
        let (pools, decisions, explanation) = (BTreeMap::new(), Vec::new(), String::new());
        Self { shrink_after_ms, scaler, pools, decisions, explanation }
    }

    /// Returns the pools for the planner.
    pub(crate) fn pool_problems(&self) -> Vec<PoolProblem> {
        let pool = |PoolLimits { pool, min_workers, max_workers }: PoolLimits| PoolProblem {
            name: pool,
            min_workers,
            max_workers: max_workers.max(min_workers),
        };
        self.scaler.pools().into_iter().map(pool).collect()
    }

    /// Decides on the number of workers of each pool, and starts to change the numbers. `needs` are the needs of the plan
    /// for [`Self::pool_problems`], and `workers` are the live workers.
    pub(crate) fn update(&mut self, now: Millis, needs: &ResourceNeeds, workers: &[WorkerReportSample]) {
        let pools = self.pool_problems();
        self.pools.retain(|name, _| {
            let is_scaled = pools.iter().any(|pool| pool.name == *name);
            if !is_scaled {
                remove_gauges(name, &ALL_GAUGES);
            }
            is_scaled
        });
        self.decisions.clear();
        let are_full = pools.iter().any(|pool| needs.wanted_in(&pool.name) > Some(pool.max_workers));
        let mut sentences = Vec::with_capacity(pools.len());
        for pool in &pools {
            let settings = ScaleSettings {
                min_workers: pool.min_workers,
                max_workers: pool.max_workers,
                shrink_after_ms: self.shrink_after_ms,
            };
            let demand = PoolDemand { pool: &pool.name, settings, needs, are_full };
            let scaling = self.pools.entry(pool.name.clone()).or_default();
            scaling.calls.finish();
            let live = workers.iter().filter(|worker| worker.pool == pool.name && !worker.draining).count();
            gauge!(LIVE_WORKERS, "pool" => display_name(&pool.name).to_owned()).set(live as f64);
            let decided = self.scaler.present(&pool.name, live as u32).map(|present| {
                let decision = scaling.decide(now, &demand, present);
                scaling.calls.apply(&self.scaler, &decision, workers);
                decision
            });
            if decided.is_none() {
                scaling.on_unknown_size(&pool.name);
            }
            // The only pool of `feedline up` has no name.
            let is_named = pools.len() > 1 || !pool.name.is_empty();
            let name = if is_named { format!("pool {}: ", display_name(&pool.name)) } else { String::new() };
            scaling.log(&name);
            sentences.push(name + &scaling.sentence);
            self.decisions.extend(decided);
        }
        self.explanation = sentences.join("; ");
    }

    /// Forgets earlier decisions and drops running calls, because another coordinator leads and scales the workers.
    /// Workers that were a surplus in an earlier term must be a surplus for the whole time again before they stop.
    pub(crate) fn reset(&mut self) {
        self.pools.keys().for_each(|pool| remove_gauges(pool, &ALL_GAUGES));
        self.pools.clear();
        self.decisions.clear();
        self.explanation.clear();
    }

    /// Returns the last decision for each pool.
    pub(crate) fn decisions(&self) -> Vec<PoolDecision> {
        self.decisions.clone()
    }

    /// Returns the last decisions with their reasons: one sentence.
    pub(crate) fn explanation(&self) -> Option<String> {
        (!self.explanation.is_empty()).then(|| self.explanation.clone())
    }
}

/// The demand for the workers of one pool.
struct PoolDemand<'a> {
    pool: &'a str,
    settings: ScaleSettings,
    needs: &'a ResourceNeeds,
    /// Whether the jobs need more workers than the maximums of the pools with a known worker type allow.
    are_full: bool,
}

/// The scaling of one pool.
#[derive(Debug, Default)]
struct PoolScaling {
    history: ScaleHistory,
    calls: ScalerCalls,
    /// The last decision.
    sentence: String,
    /// The present and the wanted number of workers of the last decision, if the number is known.
    numbers: Option<(u32, u32)>,
    /// The present number of workers of the reported changes, and their wanted numbers.
    reported: (u32, BTreeSet<u32>),
    /// The last logged sentence.
    logged: String,
}

impl PoolScaling {
    /// Decides on the number of workers of the pool, of which `present` run or start.
    fn decide(&mut self, now: Millis, demand: &PoolDemand<'_>, present: u32) -> PoolDecision {
        let PoolDemand { pool, settings, needs, .. } = demand;
        let wanted_workers = needs.wanted_in(pool);
        let ScaleDecision { wanted, explanation } = if demand.needs_first_worker(present) {
            let explanation =
                "the other pools are too small, and the first worker of this pool reveals its type";
            ScaleDecision { wanted: settings.min_workers.max(1), explanation: explanation.to_owned() }
        } else {
            self.history.decide(settings, &needs.pool_scale_input(pool, now, present))
        };
        self.numbers = Some((present, wanted));
        let is_change = wanted != present;
        self.sentence = if is_change {
            format!("scaling from {present} to {wanted} workers, because {explanation}")
        } else if wanted_workers.is_some() {
            format!("keeping the current number of workers: {explanation}")
        } else if needs.is_known {
            "keeping the current number of workers: no worker of the pool has reported yet".to_owned()
        } else {
            "keeping the current number of workers: the demand of a job has not been measured yet".to_owned()
        };
        gauge!(SCALED_WORKERS, "pool" => display_name(pool).to_owned()).set(f64::from(wanted));
        gauge!(POOL_WANTED_WORKERS, "pool" => display_name(pool).to_owned())
            .set(f64::from(wanted_workers.unwrap_or(present)));
        let is_known = wanted_workers.is_some() || is_change;
        PoolDecision { pool: (*pool).to_owned(), present, wanted, is_known }
    }

    /// Decides nothing, because the scaler does not know the number of workers.
    fn on_unknown_size(&mut self, pool: &str) {
        // A surplus must be observed for the whole time before workers stop.
        self.history = ScaleHistory::default();
        self.numbers = None;
        "the number of running workers is not known yet".clone_into(&mut self.sentence);
        remove_gauges(pool, &DECISION_GAUGES);
    }

    /// Logs the last decision unless it is unchanged. `name` precedes it. The numbers in a sentence can differ with each
    /// plan, so that only new changes of the number of workers are at the level that is logged by default.
    fn log(&mut self, name: &str) {
        if self.is_new_change() {
            tracing::info!("{name}{}", self.sentence);
        } else if self.sentence != self.logged {
            tracing::debug!("{name}{}", self.sentence);
        }
        self.logged.clone_from(&self.sentence);
    }

    /// Returns whether the last decision is a change of the number of workers that has not been reported. Remembers it as
    /// reported.
    fn is_new_change(&mut self) -> bool {
        let Some((present, wanted)) = self.numbers else { return false };
        if self.reported.0 != present {
            self.reported = (present, BTreeSet::new());
        }
        present != wanted && self.reported.1.insert(wanted)
    }
}

impl PoolDemand<'_> {
    /// Whether a pool with `present` workers must start its first worker, so that the planner learns the type of its
    /// workers.
    fn needs_first_worker(&self, present: u32) -> bool {
        let is_type_unknown = self.needs.is_known && self.needs.wanted_in(self.pool).is_none();
        is_type_unknown && self.are_full && present == 0 && self.settings.max_workers > 0
    }
}

/// The calls of the scaler for one pool. At most one call runs.
#[derive(Debug, Default)]
struct ScalerCalls {
    running: JoinSet<Result<(), String>>,
    /// Time of the last warning since the last successful call.
    warned_at: Option<Instant>,
}

impl ScalerCalls {
    /// Starts a call if the decision changes the number of workers, unless an earlier call still runs.
    fn apply(&mut self, scaler: &Arc<dyn Scaler>, decision: &PoolDecision, workers: &[WorkerReportSample]) {
        let PoolDecision { pool, present, wanted, .. } = decision;
        if present == wanted || !self.running.is_empty() {
            return;
        }
        let surplus = present.saturating_sub(*wanted) as usize;
        let victims = victims::victims(workers, pool, surplus);
        let change = PoolChange { pool: pool.clone(), wanted: *wanted, victims };
        let scaler = Arc::clone(scaler);
        self.running.spawn(async move {
            let called = timeout(CALL_TIMEOUT, scaler.scale(&change)).await;
            let pool = display_name(&change.pool);
            let seconds = CALL_TIMEOUT.as_secs();
            let result =
                called.unwrap_or_else(|_| Err(format!("the scaler did not answer within {seconds} s")));
            result.map_err(|reason| format!("cannot change the number of workers of pool {pool}: {reason}"))
        });
    }

    /// Logs the result of a finished call.
    fn finish(&mut self) {
        while let Some(joined) = self.running.try_join_next() {
            self.on_result(
                joined.unwrap_or_else(|error| Err(format!("the call of the scaler failed: {error}"))),
            );
        }
    }

    fn on_result(&mut self, result: Result<(), String>) {
        let Err(sentence) = result else {
            self.warned_at = None;
            return;
        };
        if self.warned_at.is_some_and(|at| at.elapsed() < WARNING_INTERVAL) {
            tracing::debug!("{sentence}");
        } else {
            self.warned_at = Some(Instant::now());
            tracing::warn!("{sentence}; trying again with each plan");
        }
    }
}

/// The name of a pool in labels of metrics and in messages.
fn display_name(pool: &str) -> &str {
    if pool.is_empty() { "default" } else { pool }
}

fn remove_gauges(pool: &str, names: &[&'static str]) {
    for name in names {
        gauge!(*name, "pool" => display_name(pool).to_owned()).set(ABSENT);
    }
}
