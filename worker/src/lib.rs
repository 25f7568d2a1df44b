//! The worker role: reads leased splits of a dataset, runs the operators of the pipeline, and sends batches to consumers.
//!
//! The crate communicates with coordinators and consumers only through the service traits. It does not read flags or
//! environment variables.

mod cache;
mod control;
mod engine;
mod feature_rows;
mod fetch_limit;
mod gather_server;
mod graphs;
pub mod metrics;
mod operator_meter;
mod process;
pub mod sample;
mod server;
mod settings;
mod shard_filter;
mod stored_index;
mod tasks;
mod tickets;
mod worker;

pub use feedline_operators::kernel;
pub use feedline_sources::{COMPRESSION_METRICS, Credential, METRICS as STORE_METRICS, ObjectAccess};
pub use graphs::PeerWorkers;
pub use process::{BLOCKING_THREAD_PREFIX, ProcessClock};
pub use settings::{
    DEFAULT_MAX_FETCHES, FunctionSettings, GraphDiskSettings, RowCacheSettings, StoreCacheSettings,
    WorkerSettings, cached_rows_pattern, store_segments_pattern, stored_index_patterns,
};
pub use worker::{RunningWorker, WorkerHealth, start};

/// Writes `bytes` to `folder` and parses them as a disk cache segment, and as an object store cache segment. This is the
/// entry point of the fuzz target `cache`.
#[doc(hidden)]
pub fn read_cached_rows(folder: &std::path::Path, bytes: &[u8]) {
    cache::read_cached_rows(folder, bytes);
}
