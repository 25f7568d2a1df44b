//! Scaling of workers: `feedline_planner::plan::scale` decides on the number of workers, and a [`Scaler`] starts and stops
//! them.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_common::metric_table::ABSENT;
use feedline_data::ids::Millis;
use feedline_planner::observe::ResourceNeeds;
use feedline_planner::plan::{ScaleHistory, ScaleSettings};
use metrics::gauge;

pub use feedline_data::view::PoolDecision;

use crate::metrics::SCALED_WORKERS;

#[cfg(test)]
mod tests;

/// Limits of a pool of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLimits {
    /// The pool, as workers report it; empty for workers without a pool.
    pub pool: String,
    /// The smallest number of workers.
    pub min_workers: u32,
    /// The largest number of workers.
    pub max_workers: u32,
}

/// A change of the number of workers of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolChange {
    /// The pool.
    pub pool: String,
    /// The wanted number of running and starting workers, excluding draining workers.
    pub wanted: u32,
    /// Hosts of the advertised addresses of the workers that should stop, in the order in which they should stop: the
    /// smallest caches first. As many as surplus workers, or fewer if fewer workers report; empty when the pool grows.
    pub victims: Vec<String>,
}

/// Starts and stops workers. Without a scaler, the number of wanted workers is only a metric.
#[async_trait]
pub trait Scaler: Debug + Send + Sync {
    /// Returns the pools in a fixed order. `feedline up --autoscale` has one pool with an empty name.
    fn pools(&self) -> Vec<PoolLimits>;

    /// Returns the number of running and starting workers of `pool`, excluding draining workers, or `None` while it is
    /// unknown, in which case the pool keeps its size. `live` is the number of workers that report and do not drain.
    fn present(&self, pool: &str, live: u32) -> Option<u32>;

    /// Starts to change the number of workers of a pool. A worker drains before it stops, so that no split is computed
    /// twice. The call is repeated with each plan until the present number is the wanted number.
    ///
    /// # Errors
    /// Returns an error if workers cannot be started or reached. The error is a sentence.
    async fn scale(&self, change: &PoolChange) -> Result<(), String>;
}

/// A scaler and its settings.
#[derive(Debug)]
pub(crate) struct ScalingPolicy {
    settings: ScaleSettings,
    scaler: Arc<dyn Scaler>,
    scaling: ScaleHistory,
    /// The last decision.
    last_decision: String,
}

impl ScalingPolicy {
    pub(crate) fn new(settings: ScaleSettings, scaler: Arc<dyn Scaler>) -> Self {
        Self { settings, scaler, scaling: ScaleHistory::default(), last_decision: String::new() }
    }

    /// Decides on the number of workers and scales them.
    pub(crate) async fn update(&mut self, now: Millis, needs: ResourceNeeds) {
        let present = self.scaler.present();
        let decision = self.scaling.decide(&self.settings, &needs.scale_input(now, present));
        gauge!(SCALED_WORKERS).set(f64::from(decision.wanted));
        if decision.wanted == present {
            let why = if needs.is_known {
                &decision.explanation
            } else {
                "the demand of a job has not been measured yet"
            };
            self.log(format!("keeping the current number of workers: {why}"), false);
            return;
        }
        let wanted = decision.wanted;
        self.log(
            format!("scaling from {present} to {wanted} workers, because {}", decision.explanation),
            true,
        );
        if let Err(sentence) = self.scaler.scale(decision.wanted).await {
            tracing::warn!("cannot change the number of workers: {sentence}");
        }
    }

    /// Forgets earlier decisions, because another coordinator leads and scales the workers. Workers that were a surplus in
    /// an earlier term must be a surplus for the whole time again before they stop.
    pub(crate) fn reset(&mut self) {
        self.scaling = ScaleHistory::default();
        self.last_decision.clear();
        gauge!(SCALED_WORKERS).set(ABSENT);
    }

    /// The last decision with its reason: one sentence.
    pub(crate) fn last_decision(&self) -> Option<String> {
        (!self.last_decision.is_empty()).then(|| self.last_decision.clone())
    }

    /// Logs a decision unless it equals the last decision.
    fn log(&mut self, sentence: String, is_change: bool) {
        if sentence == self.last_decision {
            return;
        }
        if is_change {
            tracing::info!("{sentence}");
        } else {
            tracing::debug!("{sentence}");
        }
        self.last_decision = sentence;
    }
}
