//! Which rows a job keeps before its costs are known. Workers are told so with the job's details, and the planner starts
//! from the same decision.

use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::CacheDecision;
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::tenants::Quota;

/// Rows are kept before anything is known only if they are at least so large on average: for smaller ones it may cost more
/// than they do.
const LEAST_ROW_BYTES: u64 = 4 << 10;

/// What is kept of a job of which nothing is known yet; `None` for one of small rows, for one that asks for no row again,
/// where it is the pipeline's to say, and where a quota limits what is kept: it is not known yet how much that would be.
pub fn first_keep(
    pipeline: &Pipeline,
    dataset: &DatasetSummary,
    passes_left: f64,
    quota: &Quota,
) -> Option<CacheDecision> {
    let mean_row_bytes = dataset.bytes / dataset.rows.max(1);
    let running = pipeline.operators.iter().filter(|operator| !operator.kind.is_engine_operator());
    let after = running.take_while(|operator| !operator.kind.is_random()).count() as u32;
    let keep = CacheDecision { after, tier: CacheTier::Memory, form: CacheEncoding::AsIs };
    let is_worth_it =
        mean_row_bytes >= LEAST_ROW_BYTES && passes_left > 1.0 && pipeline.cached_prefix().is_none();
    (is_worth_it && quota.cache_bytes.is_none()).then_some(keep)
}
