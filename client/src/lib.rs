//! The client: joins a job as a consumer, fetches its splits from workers and puts batches together, in order.
//!
//! It knows coordinators and workers only as the services of `feedline_proto`. Whether they are in this process or
//! behind gRPC does not matter.
//!
//! Each rank of a training job opens the same spec, takes its own consumer and iterates its batches. A checkpoint
//! stores [`Job::position`]; a spec that starts there goes on with the next batch, on any number of consumers.
//!
//! ```no_run
//! use feedline_client::{ClientError, ClientSettings, Credentials, Job};
//! use feedline_data::messages::JobSpec;
//! use feedline_data::ids::SessionId;
//! use feedline_data::pipeline::Pipeline;
//! use feedline_data::position::Position;
//!
//! async fn train(pipeline: Pipeline, rank: u32, saved: Option<Position>) -> Result<Option<Position>, ClientError> {
//!     let spec = JobSpec { epochs: 3, consumers: 4, virtual_consumers: 4, start: saved, ..JobSpec::new(pipeline) };
//!     let job = Job::connect("http://10.0.0.1:7070", &Credentials::default(), spec, ClientSettings::default()).await?;
//!     // The session's number must grow from one life of this rank to the next: a time in nanoseconds will do.
//!     let mut consumer = job.consumer(rank, SessionId(1_700_000_000_000_000_000));
//!     for _ in 0..1000 {
//!         let Some(batch) = consumer.next().await? else { break };
//!         println!("{} rows of {:?}", batch.records.num_rows(), batch.records.schema());
//!     }
//!     // What was taken is with the coordinator before the position is asked for.
//!     consumer.close().await?;
//!     job.position().await
//! }
//! ```

pub mod audit;
mod batch;
mod busy;
mod consumer;
pub mod digest;
mod error;
mod feed;
mod fetch;
mod job;
mod metrics;
pub mod origin;
mod pieces;
pub mod probe;
mod receive_pool;
mod session;
mod settings;
#[cfg(test)]
mod testing;
mod workers;

pub use batch::{Batch, BatchInfo};
pub use consumer::{Consumer, ConsumerView};
pub use error::ClientError;
pub use feedline_access::{Bearer, Credentials, Tls, TlsFiles};
pub use job::Job;
pub use metrics::{METRICS, MetricDescription, MetricKind, describe_metrics};
pub use settings::ClientSettings;
pub use workers::{GrpcWorkers, WorkerDirectory};
