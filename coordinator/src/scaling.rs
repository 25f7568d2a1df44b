//! The interface of scalers, which start and stop the workers of pools. `scaling_policy.rs` calls them.

use std::fmt::Debug;

use async_trait::async_trait;

pub use feedline_data::view::PoolDecision;

/// Limits of a pool of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLimits {
    /// The pool, as workers report it; empty for workers without a pool.
    pub pool: String,
    /// The smallest number of workers.
    pub min_workers: u32,
    /// The largest number of workers. A smaller number than `min_workers` counts as `min_workers`.
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
    /// smallest caches first. The host of an IPv6 address has no brackets. As many as surplus workers, or fewer if fewer
    /// workers report; empty when the pool grows.
    pub victims: Vec<String>,
}

/// Starts and stops workers. Without a scaler, the number of wanted workers is only a metric.
#[async_trait]
pub trait Scaler: Debug + Send + Sync {
    /// Returns the pools in a fixed order. If several pools suit a demand equally, an earlier one grows. `feedline up
    /// --autoscale` has one pool with an empty name.
    fn pools(&self) -> Vec<PoolLimits>;

    /// Returns the number of running and starting workers of `pool`, excluding draining workers, or `None` while it is
    /// unknown, in which case the pool keeps its size. `live` is the number of workers that report and do not drain.
    fn present(&self, pool: &str, live: u32) -> Option<u32>;

    /// Starts to change the number of workers of a pool. A worker drains before it stops, so that no split is computed
    /// twice. The call is repeated with each plan until the present number is the wanted number. The calls for one pool do
    /// not overlap. A call that takes too long, or whose coordinator no longer leads, is dropped, so that the future must
    /// be cancel safe.
    ///
    /// # Errors
    /// Returns an error if workers cannot be started or reached. The error is a sentence.
    async fn scale(&self, change: &PoolChange) -> Result<(), String>;
}
