//! The worker role: reads leased splits of a dataset, runs the operators of a pipeline on them, and serves the batches.
//!
//! The crate reaches coordinators and consumers only through the service traits, and never reads flags or the environment.

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

/// Parses `bytes` as a file of the disk cache, and as a segment of the object store's cache.
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
