//! The client: joins a job as a consumer, fetches its splits from workers and puts batches together, in order.
//!
//! It knows coordinators and workers only as the services of `feedline_proto`. Whether they are in this process or
//! behind gRPC does not matter.

pub mod audit;
mod batch;
mod consumer;
pub mod digest;
mod error;
mod feed;
mod fetch;
mod job;
mod metrics;
mod pieces;
mod session;
mod settings;
mod slab;
#[cfg(test)]
mod testing;
mod workers;

pub use batch::{Batch, BatchInfo};
pub use consumer::Consumer;
pub use error::ClientError;
pub use job::Job;
pub use metrics::{METRICS, MetricDescription, MetricKind, describe_metrics};
pub use settings::ClientSettings;
pub use workers::{GrpcWorkers, WorkerDirectory};
