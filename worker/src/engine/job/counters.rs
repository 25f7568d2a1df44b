//! The counters of a job on one worker. They are kept when the worker compiles the job again after a new cache
//! decision.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use feedline_data::manifest::Manifest;
use feedline_operators::BuiltOperator;

use crate::engine::cache_point::CachePointCounters;
use crate::engine::encodings::EncodingTrials;
use crate::engine::trace::{OperatorCounters, StoreCounters, Tracing};

#[derive(Debug, Clone)]
pub(crate) struct JobCounters {
    pub(crate) source: Arc<OperatorCounters>,
    pub(crate) store: Arc<StoreCounters>,
    pub(crate) operators: Vec<Arc<OperatorCounters>>,
    pub(crate) batch: Arc<OperatorCounters>,
    /// Counters of the current or the most recent cache point. `None` if the job has not had a cache point.
    pub(crate) cache: Option<CachePointCounters>,
    /// Measured costs of cache encodings. `None` if the pipeline has a `cache` operator, or the worker does not trace
    /// operators.
    pub(crate) trials: Option<Arc<EncodingTrials>>,
    /// Total nanoseconds during which a consumer waited for rows while the next group waited for memory.
    pub(crate) memory_wait_ns: Arc<AtomicU64>,
}

impl JobCounters {
    /// Creates counters at zero. `batch_parallelism` is the `parallelism` of the pipeline's `batch` operator.
    pub(crate) fn new(
        operators: &[BuiltOperator],
        batch_parallelism: Option<u32>,
        manifest: &Manifest,
        tracing: &Tracing,
    ) -> Self {
        let counters = |operator: &BuiltOperator| {
            OperatorCounters::new(&operator.name, operator.parallelism, tracing.is_on)
        };
        Self {
            source: OperatorCounters::new("source", None, tracing.is_on),
            store: Arc::new(StoreCounters::new(manifest.shards.len(), tracing)),
            operators: operators.iter().map(counters).collect(),
            batch: OperatorCounters::new("batch", batch_parallelism, tracing.is_on),
            cache: None,
            trials: None,
            memory_wait_ns: Arc::default(),
        }
    }
}
