//! The worker role: reads leased splits from a dataset, runs a pipeline's operators on them and serves the batches.
//!
//! It does not know who its coordinator and its consumers are beyond the service traits, and never reads flags or the
//! environment.

mod cache;
mod control;
mod engine;
mod fetch_limit;
pub mod metrics;
mod process;
mod server;
mod settings;
mod stored_index;
mod tasks;
mod tickets;
mod worker;

/// Reads `bytes` as a file of rows in the disk cache and as a segment of rows in the object store's.
#[cfg(feature = "fuzzing")]
pub fn read_kept_rows(folder: &std::path::Path, bytes: &[u8]) {
    cache::read_kept_rows(folder, bytes);
}

pub use feedline_operators::kernel;
pub use feedline_sources::{Credential, ObjectAccess};
pub use process::{BLOCKING_THREADS, ProcessClock};
pub use settings::{
    FunctionSettings, MOST_FETCHES, RowCacheSettings, StoreCacheSettings, WorkerSettings, kept_indexes,
    kept_rows, kept_store_rows,
};
pub use worker::{RunningWorker, start};
