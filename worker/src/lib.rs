//! The worker role: reads leased splits from a dataset, runs a pipeline's operators on them and serves the batches.
//!
//! It does not know who its coordinator and its consumers are beyond the service traits, and never reads flags or the
//! environment.

mod cache;
mod control;
mod engine;
pub mod metrics;
mod process;
mod server;
mod settings;
mod tasks;
mod worker;

pub use feedline_operators::kernel;
pub use process::{BLOCKING_THREADS, ProcessClock};
pub use settings::{RowCacheSettings, StoreCacheSettings, WorkerSettings};
pub use worker::{RunningWorker, start};
