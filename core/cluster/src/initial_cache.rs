//! The cache decision for a job without measured costs. Workers receive the decision with the details of the job, and the
//! planner uses it as the initial decision.

use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::CacheDecision;
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::tenants::Quota;

/// Minimum mean size of rows that are cached. Smaller rows may cost more to cache than to read again.
const MIN_ROW_BYTES: u64 = 4 << 10;

/// Returns the decision to cache rows in memory before the first random operator. Returns `None` for small rows, for rows
/// that are read only once, for a pipeline with a `cache` operator, and for a tenant with a cache quota, because the size of
/// the cached rows is unknown.
pub fn initial_cache_decision(
    pipeline: &Pipeline,
    dataset: &DatasetSummary,
    passes_left: f64,
    quota: &Quota,
) -> Option<CacheDecision> {
    let mean_row_bytes = dataset.bytes / dataset.rows.max(1);
    let running = pipeline.operators.iter().filter(|operator| !operator.kind.is_engine_operator());
    let after = running.take_while(|operator| !operator.kind.is_random()).count() as u32;
    let decision =
        CacheDecision { operators_before: after, tier: CacheTier::Memory, encoding: CacheEncoding::AsIs };
    let is_worthwhile =
        mean_row_bytes >= MIN_ROW_BYTES && passes_left > 1.0 && pipeline.cached_prefix().is_none();
    (is_worthwhile && quota.cache_bytes.is_none()).then_some(decision)
}
